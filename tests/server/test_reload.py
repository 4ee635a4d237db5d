"""What a wrong flag does to a gateway that serves: nothing."""

from __future__ import annotations

import pytest

from server.cli.command_line import read_again
from server.errors import ConfigError

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("line", ["max-queued: many", "no-such-flag: 1", "port: 99999", "a: b: c"])
def test_a_broken_file_is_an_error_and_no_end(tmp_path, line):
    path = tmp_path / "limits.yaml"
    path.write_text("max-queued: 7\n")
    assert read_again(["--config", str(path)]).settings.max_queued == 7
    path.write_text(line)
    with pytest.raises(ConfigError):
        read_again(["--config", str(path)])
