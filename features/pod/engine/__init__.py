"""The pod's part in the engine."""
