"""Messages and tools to a prompt's text and token ids, by the model's own chat template."""
