"""An OpenAI-compatible serving gateway for speculative decoding.

``__all__`` has the public names of the package; docs/package.md describes them. A name is imported
when it is used, because every import of a module in the package runs this one.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eaglegate.engine.scripted import ScriptedEngine, steps
    from eaglegate.engine.types import EngineRequest, Sampling, Step
    from eaglegate.text.events import (
        ContentDelta,
        FinishReason,
        ReasoningDelta,
        ToolCallDelta,
        ToolCallEnd,
        ToolCallStart,
    )
    from eaglegate.text.parsing.answer import make_parser
    from eaglegate.text.parsing.parser import Parser
    from eaglegate.text.parsing.vocabulary import Vocabulary

__version__ = "0.1.0"
__all__ = [
    "ContentDelta",
    "EngineRequest",
    "FinishReason",
    "Parser",
    "ReasoningDelta",
    "Sampling",
    "ScriptedEngine",
    "Step",
    "ToolCallDelta",
    "ToolCallEnd",
    "ToolCallStart",
    "Vocabulary",
    "make_parser",
    "steps",
]
_MODULES = {
    "engine.scripted": ("ScriptedEngine", "steps"),
    "engine.types": ("EngineRequest", "Sampling", "Step"),
    "text.events": (
        "ContentDelta", "FinishReason", "ReasoningDelta", "ToolCallDelta", "ToolCallEnd",
        "ToolCallStart",
    ),
    "text.parsing.answer": ("make_parser",),
    "text.parsing.parser": ("Parser",),
    "text.parsing.vocabulary": ("Vocabulary",),
}  # fmt: skip

if not TYPE_CHECKING:  # type checkers would take every name for one of the package

    def __getattr__(name: str) -> object:
        for module, names in _MODULES.items():
            if name in names:
                return getattr(import_module(f"{__name__}.{module}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
