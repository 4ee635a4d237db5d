"""The part of audits in the engine."""
