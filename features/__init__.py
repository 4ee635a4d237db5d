"""Features: parts of the gateway that stand beside the path of a request, one folder each.

A folder holds everything of its feature: settings, routes, metrics, its part of the live page, its
command. Nothing else imports it. ``eaglegate.server.cli.features`` names the folders, and a gateway
runs without any of them.
"""
