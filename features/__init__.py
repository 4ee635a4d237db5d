"""Features: parts of the gateway that stand beside the path of a request, one folder each.

A folder holds everything of its feature: settings, routes, metrics, its engine, its command. The
rest of the gateway does not import it. ``eaglegate.server.cli.feature_table`` names the folders,
and a gateway runs without any of them.
"""
