"""The part of fair share in the engine."""
