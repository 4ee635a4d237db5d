"""What the runs of ``bench`` and ``replay`` share: clients of settings, and a journal."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from eaglegate.lab.measure.load import LoadClient, Target
from eaglegate.lab.measure.servers import Say, Setting, describe_target, serve
from eaglegate.lab.measure.stream import RequestResult

PRIVATE = ("text", "reasoning", "tool_calls", "token_ids", "logprobs")
"""Fields of a result that are not written to files."""


class BenchError(RuntimeError):
    """Run that cannot be made. The message says what to do."""


class RunJournal:
    """Finished parts of a run, one JSON object per line, without prompts and answers."""

    def __init__(self, path: Path, digest: Mapping[str, Any], *, resume: bool) -> None:
        """Begin a journal, or read ``rows`` of one with the same digest. Raises BenchError."""
        self._path = path
        self.rows: list[dict[str, Any]] = []
        if not path.exists():
            self.append({"plan": digest})
        elif resume:
            self._read(digest)
        else:
            raise BenchError(
                f"{path.parent} holds a run already: --resume continues it, or give another --out"
            )

    def _read(self, digest: Mapping[str, Any]) -> None:
        """Read the complete lines, and truncate a last line that a kill cut short."""
        data = self._path.read_bytes()
        content = data[: data.rfind(b"\n") + 1]
        self._path.write_bytes(content)
        header, *self.rows = [orjson.loads(line) for line in content.splitlines()] or [{}]
        if header.get("plan") != orjson.loads(orjson.dumps(digest)):
            raise BenchError(
                f"{self._path} was made with other settings: give the command it was made with "
                "(report.json has it), or another --out"
            )

    def append(self, row: Mapping[str, Any]) -> None:
        with self._path.open("ab") as file:
            file.write(orjson.dumps(row) + b"\n")


def strip_private(result: RequestResult) -> dict[str, Any]:
    return {name: value for name, value in result.to_json().items() if name not in PRIVATE}


@asynccontextmanager
async def open_clients(
    settings: Sequence[Setting],
    target: Target,
    folder: Path,
    say: Say,
    own_fields: Mapping[str, Any] | None = None,
) -> AsyncGenerator[dict[str, LoadClient], None]:
    """Yield a client for each setting by name, and start the servers that need starting.

    ``target`` has what all targets share. ``own_fields`` are for requests to an eaglegate.
    """
    async with AsyncExitStack() as stack:
        urls: dict[tuple[str, tuple[str, ...]], str] = {}
        clients: dict[str, LoadClient] = {}
        for setting in settings:
            if setting.server not in urls:
                urls[setting.server] = setting.url or await stack.enter_async_context(
                    serve(setting, folder / f"serve-{len(urls)}.log", say)
                )
            setting_target = await describe_target(
                replace(target, url=urls[setting.server], fields=setting.fields)
            )
            if setting_target.reports_steps:
                fields = {**(own_fields or {}), **setting.fields}
                setting_target = replace(setting_target, fields=fields)
            clients[setting.name] = await stack.enter_async_context(LoadClient.open(setting_target))
        yield clients
