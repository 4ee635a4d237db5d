"""The part of the prefix cache in the engine."""
