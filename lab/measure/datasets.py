"""Data sets: the requests of a benchmark, as sessions of turns.

Supported are SPEED-Bench's layout (every turn of a row is sent, not only the first), ShareGPT,
OpenAI Batch JSONL, random tokens, and small sets of our own. The layout of a file is recognized by
its rows. Between two turns the model's answer is added to the conversation, unless the data has an
answer of its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
OWN = Path(__file__).parent / "data"
"""Folder of our own sets, one file each. `mixed` is all of them."""
MIXED = "mixed"
PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED"
"""Text in a public SPEED-Bench row until its prompt is fetched."""
SHARED: tuple[str, ...] = ("tools", "tool_choice", "response_format")
"""Fields of a body that a row may set for all its turns."""
FIRST_TOKEN, TOKEN_RANGE = 1000, 1000
"""Range of ids in random prompts: every vocabulary has them, and in most none is special."""


class DataError(ValueError):
    """Data set that cannot be sent. The message says what to do."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a session."""

    messages: tuple[Mapping[str, Any], ...] = ()
    """Messages that are added to the conversation before it is sent."""
    body: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of the body."""
    path: str = CHAT
    arrival_s: float | None = None
    """Recorded time after the start of the run in seconds, if any."""
    pause: float = 0.0
    """Recorded time after the answer to the previous turn, in seconds."""
    leave_after: int | None = None
    """Number of tokens after which the connection is closed, like the recorded client's."""


@dataclass(frozen=True, slots=True)
class Session:
    """One conversation, whose turns are sent one after another."""

    id: str
    turns: tuple[Turn, ...]
    category: str = ""


def load_sessions(source: str, *, count: int | None = None, seed: int = 0) -> list[Session]:
    """Return the sessions of a file, a folder or one of our sets, shuffled by ``seed``.

    `random:INPUT:OUTPUT` makes prompts of that many random tokens. Raises DataError.
    """
    if source.startswith("random:"):
        sessions = list(_make_random(source, count or 64, seed))
    else:
        sessions = [session for path in _find_files(source) for session in _read_file(path)]
    if not sessions:
        raise DataError(f"--data {source} has no conversation")
    random.Random(seed).shuffle(sessions)
    return sessions[:count]


def list_own_sets() -> list[str]:
    return [MIXED, *sorted(path.stem for path in OWN.glob("*.jsonl"))]


def take_block(sessions: list[Session], block: int, requests: int) -> list[Session]:
    """Return the sessions of a block, about ``requests`` requests, cycling through the data set."""
    index = block * requests
    selection: list[Session] = []
    while sum(len(session.turns) for session in selection) < requests:
        session = sessions[index % len(sessions)]
        selection.append(session)
        index += 1
    return selection


def _find_files(source: str) -> list[Path]:
    if (OWN / f"{source}.jsonl").is_file():
        return [OWN / f"{source}.jsonl"]
    path = OWN if source == MIXED else Path(source)
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in READABLE)
        if files:
            return files
    if path.is_file():
        return [path]
    raise DataError(
        f"--data {source}: there is no such file, folder with {', '.join(READABLE)} files, or set "
        f"of ours ({', '.join(list_own_sets())})"
    )


def _read_file(path: Path) -> Iterator[Session]:
    """Read the sessions of a file. Raises DataError."""
    rows = READABLE.get(path.suffix, _read_json)(path)
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise DataError(f"{path}: row {number + 1} is not an object")
        yield _read_row(row, f"{path.stem}-{number}", path)


def _read_json(path: Path) -> Iterable[Any]:
    text = path.read_bytes()
    try:
        if text.lstrip()[:1] == b"[":
            return list(orjson.loads(text))
        return [orjson.loads(line) for line in text.splitlines() if line.strip()]
    except orjson.JSONDecodeError as error:
        raise DataError(f"{path} is neither JSON nor JSON lines: {error}") from None


def _read_parquet(path: Path) -> Iterable[Any]:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise DataError(f"{path}: reading parquet needs `pip install pyarrow`") from None
    rows: list[Any] = parquet.read_table(path).to_pylist()
    return rows


READABLE: dict[str, Callable[[Path], Iterable[Any]]] = {
    ".jsonl": _read_json,
    ".json": _read_json,
    ".parquet": _read_parquet,
}


def _read_row(row: dict[str, Any], name: str, path: Path) -> Session:
    for column, read in ROWS:
        if column in row:
            return read(row, name)
    raise DataError(
        f"{path}: a row needs one of {', '.join(column for column, _ in ROWS)}; "
        f"given {', '.join(map(str, row)) or 'nothing'}"
    )


def _read_speed_bench(row: dict[str, Any], name: str) -> Session:
    """Read a row of SPEED-Bench, whose ``turns`` are the user's messages."""
    texts = [turn if isinstance(turn, str) else turn["content"] for turn in row["turns"]]
    return _make_session(row, name, [[{"role": "user", "content": text}] for text in texts])


def _read_sharegpt(row: dict[str, Any], name: str) -> Session:
    """Read the user's messages of a recorded chat; the model writes its own answers."""
    messages = [part for part in row["conversations"] if part.get("from") in ("human", "user")]
    turns = [[{"role": "user", "content": part["value"]}] for part in messages]
    return _make_session({"category": "sharegpt", **row}, name, turns)


def _read_batch(row: dict[str, Any], name: str) -> Session:
    """Read a line of an OpenAI Batch file as one unchanged request."""
    turn = Turn(body=row["body"], path=row.get("url", CHAT))
    return Session(str(row.get("custom_id", name)), (turn,), "batch")


def _read_own(row: dict[str, Any], name: str) -> Session:
    """Read a row of our layout: ``steps`` of messages, which may have answers, and shared tools."""
    return _make_session(row, name, row["steps"])


def _read_messages(row: dict[str, Any], name: str) -> Session:
    """Read one request's messages or, as in SPEED-Bench, those of many turns.

    A user message directly after another begins a turn.
    """
    turns: list[list[Any]] = [[]]
    for message in row["messages"]:
        if turns[-1] and message["role"] == turns[-1][-1]["role"] == "user":
            turns.append([])
        turns[-1].append(message)
    return _make_session(row, name, turns)


def _make_session(row: dict[str, Any], name: str, turns: Iterable[Iterable[Any]]) -> Session:
    """Make a session of turns of messages, with what the row sets for all of them."""
    body = {key: row[key] for key in SHARED if key in row}
    session_turns = tuple(Turn(tuple(messages), body) for messages in turns)
    for text in (str(part.get("content")) for turn in session_turns for part in turn.messages):
        if PLACEHOLDER in text.upper():
            raise DataError(
                "the set holds placeholders instead of prompts: fill it with its own prepare.py "
                "first"
            )
    identity = row.get("question_id", row.get("id", row.get("name", name)))
    return Session(str(identity), session_turns, str(row.get("category", "")))


ROWS: tuple[tuple[str, Callable[[dict[str, Any], str], Session]], ...] = (
    ("steps", _read_own),
    ("turns", _read_speed_bench),
    ("conversations", _read_sharegpt),
    ("body", _read_batch),
    ("messages", _read_messages),
)
"""Keys that identify a row's layout, in the order in which they are tried."""


def _make_random(source: str, count: int, seed: int) -> Iterator[Session]:
    try:
        _, input_length, output_length = source.split(":")
        prompt_tokens, output_tokens = int(input_length), int(output_length)
    except ValueError:
        raise DataError(f"--data {source}: write random:INPUT:OUTPUT, numbers of tokens") from None
    generator = random.Random(seed)
    for number in range(count):
        tokens = [FIRST_TOKEN + generator.randrange(TOKEN_RANGE) for _ in range(prompt_tokens)]
        body = {"prompt": tokens, "max_tokens": output_tokens, "ignore_eos": True}
        turn = Turn(body=body, path=COMPLETIONS)
        yield Session(f"random-{number}", (turn,), f"random {prompt_tokens}:{output_tokens}")
