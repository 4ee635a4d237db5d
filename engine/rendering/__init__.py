"""Messages to token ids without vLLM: a tokenizer.json and a chat template are all it takes."""

from engine.rendering.files import ModelFiles, UnsupportedModel
from engine.rendering.renderer import TemplateRenderer, read_template

__all__ = ["ModelFiles", "TemplateRenderer", "UnsupportedModel", "read_template"]
