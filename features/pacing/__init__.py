"""Streams at a fixed pace, whose blocks reveal nothing of the accepted drafts."""
