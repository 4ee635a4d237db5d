"""Engines: tokens in, steps out. No HTTP server in here."""
