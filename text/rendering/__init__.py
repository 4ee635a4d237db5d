"""Rendering of messages and tools to a prompt's token ids, by the model's own chat template."""
