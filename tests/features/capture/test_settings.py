"""Settings of the capture, checked before any engine starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from eaglegate.engine.vllm_contract import find_vllm
from eaglegate.server.cli.first_read import read_first
from eaglegate.server.errors import ConfigError


@pytest.mark.skipif(find_vllm() is None, reason="reads the line on behalf of vLLM")
def test_patterns_are_checked_at_the_first_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--capture-redact .* RE2"):
        read_first("serve", ["--capture", str(tmp_path), "--capture-redact", "(?=x)"])
