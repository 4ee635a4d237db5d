"""The one screen a person sees when the gateway is ready."""

from __future__ import annotations

from engine.types import EngineInfo
from server.generation.parsers import Parsers

EXAMPLE = "What is 84 - 37?"


def banner(
    url: str, operator: str, model: str, info: EngineInfo, parsers: Parsers, seconds: float
) -> str:
    """URL, model, speculation and why, a line to paste, and where the metrics are."""
    workers = {"workers": info.details["workers"]} if "workers" in info.details else {}
    facts = {
        "model": f"{model} ({info.model}), context {info.max_model_len} tokens",
        **workers,
        "speculation": info.speculation.summary or "off",
        "tools": parsers.tool_parser or "no parser",
        "reasoning": parsers.reasoning_parser or "no parser",
        "metrics": f"{operator}/metrics",
        "ready": f"after {seconds:.1f} s",
    }
    width = max(map(len, facts))
    lines = [f"  {name:<{width}}  {value}" for name, value in facts.items()]
    return "\n".join(["", f"eaglegate serves {url}/v1", "", *lines, "", *_example(url, model), ""])


def _example(url: str, model: str) -> list[str]:
    body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "{EXAMPLE}"}}]}}'
    return [
        "Try it:",
        "",
        f"  curl {url}/v1/chat/completions -H 'content-type: application/json' \\",
        f"    -d '{body}'",
    ]
