"""How much a model is to reason, in the words of several APIs, as templates call it."""

from __future__ import annotations

from typing import Any

from server.apis.chat.request import ChatRequest, ThinkingOptions
from server.generation.pipeline import ServedModel


def effort_kwargs(effort: str | None) -> dict[str, Any]:
    """What templates call it: an effort, or a switch that turns thinking off."""
    if effort is None:
        return {}
    return {"reasoning_effort": effort, **(thinking_kwargs(False) if effort == "none" else {})}


def thinking_kwargs(on: bool | None) -> dict[str, Any]:
    """Both names that templates have for the switch; nothing where it is left to the template."""
    return {} if on is None else {"enable_thinking": on, "thinking": on}


def chat_effort(request: ChatRequest) -> str | None:
    """``reasoning_effort``, or OpenRouter's ``reasoning.effort``."""
    asked = request.reasoning
    return request.reasoning_effort or (asked.effort if asked else None)


def chat_kwargs(request: ChatRequest) -> dict[str, Any]:
    """Qwen's ``enable_thinking``, Anthropic's ``thinking``, OpenRouter's ``reasoning``."""
    thinking, asked = request.thinking, request.reasoning
    switches = (
        asked.enabled if asked else None,
        thinking.type != "disabled" if isinstance(thinking, ThinkingOptions) else thinking,
        request.enable_thinking,
    )
    kwargs = effort_kwargs(chat_effort(request))
    for switch in switches:
        kwargs |= thinking_kwargs(switch)
    return kwargs


def chat_budget(request: ChatRequest, served: ServedModel) -> int | None:
    """The bound of the reasoning in other words than vLLM's.

    As on messages, it has no effect where the engine does not know how reasoning ends.
    """
    if served.thinking_budget is not True or request.thinking_token_budget is not None:
        return None
    thinking, asked = request.thinking, request.reasoning
    if isinstance(thinking, ThinkingOptions) and thinking.type != "disabled":
        return thinking.budget_tokens
    return request.thinking_budget or (asked.max_tokens if asked else None)


def includes_reasoning(request: ChatRequest) -> bool:
    excluded = request.reasoning is not None and request.reasoning.exclude
    return request.include_reasoning is not False and not excluded
