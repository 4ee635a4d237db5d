"""Streams whose frames reveal nothing of the accepted drafts: a fixed pace, padded frames."""
