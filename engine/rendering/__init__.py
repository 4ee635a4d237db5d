"""Messages to token ids without vLLM: a tokenizer.json and a chat template are all it takes."""

from engine.rendering.renderer import ModelFiles, TemplateRenderer, UnsupportedModel, read_template

__all__ = ["ModelFiles", "TemplateRenderer", "UnsupportedModel", "read_template"]
