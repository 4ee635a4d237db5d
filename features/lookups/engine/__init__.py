"""The part of lookups in the engine."""
