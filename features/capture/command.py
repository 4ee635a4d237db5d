"""``eaglegate capture``: inspect, export and import captures, and delete the records of a key."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic

import orjson
from cryptography.fernet import MultiFernet

from eaglegate.features.capture.audits import CapturedAudit, format_audit, parse_audit, read_audits
from eaglegate.observability.captures.files import (
    AUDITS,
    RECORDS,
    Line,
    add_key_file_argument,
    is_gzipped,
    list_files,
    load_cipher,
    parse_lines,
    read_lines,
    read_records,
    write_lines,
    write_records,
)
from eaglegate.observability.captures.record import (
    CaptureError,
    CaptureRecord,
    DamagedRecord,
    format_record,
    parse_record,
    strip_ours,
)


def main(argv: Sequence[str]) -> int:
    """Run the command. Return 1 if a capture cannot be read."""
    options = _make_parser().parse_args(argv)
    try:
        options.run(options, load_cipher(options.key_file))
    except BrokenPipeError:  # an OSError that is no fault of the capture
        raise
    except FileExistsError as error:
        print(f"eaglegate capture: {error.filename} exists; name another --out", file=sys.stderr)
        return 1
    except (CaptureError, OSError, ValueError) as error:
        print(f"eaglegate capture: {error}", file=sys.stderr)
        return 1
    return 0


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("eaglegate capture", description=__doc__)
    commands = parser.add_subparsers(
        required=True,
        metavar="COMMAND",
    )

    def add(name: str, run: Callable[..., None], help_: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=help_, description=help_, allow_abbrev=False)
        command.add_argument("file", type=Path, metavar="FILE", help="a capture file or its folder")
        add_key_file_argument(command)
        command.set_defaults(run=run)
        return command

    add("stats", print_statistics, "count requests, tokens and acceptance by slice")
    show = add("show", print_records, "print one line per request, without its text")
    show.add_argument("--text", action="store_true", help="print whole records as JSON lines")
    export = add("export", export_capture, "convert to another format, decrypted")
    export.add_argument("--to", required=True, choices=(MOONCAKE, OPENAI_BATCH))
    export.add_argument("--out", type=Path, required=True, help="file to create; - for stdout")
    bring = add("import", import_trace, "make a capture file from a trace or OpenAI Batch JSONL")
    bring.add_argument(
        "--out", type=Path, required=True, help="file to create; encrypted if there is a key"
    )
    delete = add("delete", delete_records, "delete the requests of a key or session, or all")
    selection = delete.add_mutually_exclusive_group(required=True)
    selection.add_argument(
        "--key", metavar="NAME", help="delete the requests of the API key with this public name"
    )
    selection.add_argument(
        "--session", metavar="HASH", help="delete this session, named as `show` prints it"
    )
    delete.add_argument(
        "--unreadable",
        action="store_true",
        help="also delete lines that cannot be read: damaged lines and lines of lost keys",
    )
    selection.add_argument(
        "--all", action="store_true", help="delete every file and the salt of the hashes"
    )
    return parser


MOST_NAMED = 10
"""Maximum number of unreadable parts that an error lists."""
MOONCAKE, OPENAI_BATCH = "mooncake", "openai-batch"


def _warn(text: str) -> None:
    print(f"eaglegate capture: skipped {text}", file=sys.stderr)


def print_statistics(options: argparse.Namespace, cipher: MultiFernet | None) -> None:
    print(format_statistics(read_records(options.file, cipher, _warn)))


HEAD = ("workload", "context", "requests", "sessions", "prompt", "output", "steps", "acceptance")


def format_statistics(records: Iterable[CaptureRecord]) -> str:
    """Format a table by workload and context, followed by the number of requests per ending."""
    sums: dict[tuple[str, str], Counter[str]] = {}
    sessions: dict[tuple[str, str], set[str]] = {}
    endings: Counter[str] = Counter()
    for record in records:
        name = record.workload or "-", record.context or "-"
        counts = sums.setdefault(name, Counter())
        sessions.setdefault(name, set()).add(record.cluster)
        endings[record.ending or "unknown"] += 1
        counts.update(count_record(record))
    rows = [
        [
            *name,
            *(counts["requests"], len(sessions[name]), counts["prompt"], counts["output"]),
            counts["verify"],
            f"{1 + counts['accepted'] / counts['verify']:.3f}" if counts["verify"] else "-",
        ]
        for name, counts in sorted(sums.items())
    ]
    summary = ", ".join(f"{count} {ending}" for ending, count in endings.most_common())
    return "\n".join([*format_table(HEAD, rows), "", summary or "no requests"])


def count_record(record: CaptureRecord) -> Counter[str]:
    prompt = sum(part.tokens for part in record.prompts) or record.input_length or 0
    steps = [step for choice in record.choices for step in choice.steps]
    return Counter(
        requests=1,
        prompt=prompt,
        output=record.tokens,
        verify=sum(step.drafted > 0 for step in steps),
        accepted=sum(step.accepted for step in steps),
    )


def format_table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    cells = [list(map(str, row)) for row in (head, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    for row in cells:
        yield "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()


def print_records(options: argparse.Namespace, cipher: MultiFernet | None) -> None:
    audits = find_verdicts(options.file, cipher)
    for record in read_records(options.file, cipher, _warn):
        if options.text:
            sys.stdout.buffer.write(format_record(record) + b"\n")
            continue
        time_text = datetime.fromtimestamp(record.arrived or 0, UTC).isoformat(
            timespec="milliseconds"
        )
        counts = count_record(record)
        print(
            time_text, record.api, "workload", record.workload or "-",
            "session", record.session or "-",
            "key", record.key or "-",
            f"{counts['prompt']}+{counts['output']} tokens", record.ending or "-",
            *(f"audit: {verdict}" for verdict in audits.get(record.id, ())),
        )  # fmt: skip
    sys.stdout.flush()


def find_verdicts(path: Path, cipher: MultiFernet | None) -> dict[str, list[str]]:
    """Return the outcomes of the audits in a capture folder, by request id."""
    verdicts: dict[str, list[str]] = {}
    for audit in read_audits(path, cipher, _warn) if path.is_dir() else ():
        verdicts.setdefault(audit.id, []).append(audit.outcome)
    return verdicts


def export_capture(options: argparse.Namespace, cipher: MultiFernet | None) -> None:
    """Export a capture with the fields that the other format supports. Times begin at 0."""
    records = read_records(options.file, cipher, _warn)
    rows = to_mooncake(records) if options.to == MOONCAKE else to_openai_batch(records)
    count = 0
    with _open_new(options.out) as file:
        for row in rows:
            file.write(orjson.dumps(row) + b"\n")
            count += 1
    print(f"{count} requests written to {options.out}", file=sys.stderr)


def _open_new(path: Path) -> Any:
    if str(path) == "-":
        return os.fdopen(os.dup(1), "wb")
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def to_mooncake(records: Iterable[CaptureRecord]) -> Iterator[dict[str, Any]]:
    """Yield Mooncake rows in order of arrival."""
    by_arrival = sorted(records, key=_arrival)
    start_time = _arrival(by_arrival[0]) if by_arrival else 0.0
    for record in by_arrival:
        row = orjson.loads(format_record(strip_ours(record)))
        row.pop("eaglegate")
        yield row | {"timestamp": round(_arrival(record) - start_time, 3)}


def _arrival(record: CaptureRecord) -> float:
    """Return the time of arrival in milliseconds."""
    return 1000 * record.arrived if record.arrived is not None else record.timestamp or 0.0


def to_openai_batch(records: Iterable[CaptureRecord]) -> Iterator[dict[str, Any]]:
    """Yield the requests in OpenAI's Batch format. Raises CaptureError for a capture without
    bodies.
    """
    for number, record in enumerate(records, 1):
        body = record.request_body()
        body.pop("stream", None)
        body.pop("stream_options", None)
        custom = record.id or f"request-{number}"
        yield {"custom_id": custom, "method": "POST", "url": record.path, "body": body}


def import_trace(options: argparse.Namespace, cipher: MultiFernet | None) -> None:
    if options.out.exists():
        raise CaptureError(f"{options.out} exists")
    records = [record for file in list_files(options.file) for record in _read_foreign(file)]
    os.close(os.open(options.out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    count = write_records(options.out, records, cipher)
    print(f"{count} requests written to {options.out}", file=sys.stderr)


APIS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
}


def _read_foreign(file: Path) -> Iterator[CaptureRecord]:
    for number, line in enumerate(read_lines(file), 1):
        try:
            yield read_foreign(line)
        except DamagedRecord as error:
            _warn(f"{file.name}:{number}: {error}")


def read_foreign(line: bytes) -> CaptureRecord:
    """Parse a line of a trace or of an OpenAI Batch file. Raises DamagedRecord."""
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise DamagedRecord(f"not JSON: {error}") from None
    if not isinstance(row, dict) or "body" not in row or "url" not in row:
        return parse_record(line)
    body, path = row["body"], row["url"]
    if path not in APIS or not isinstance(body, dict):
        raise DamagedRecord(f"the url must be one of {', '.join(APIS)}, with a body")
    body = dict(body)
    fields: dict[str, Any] = {"id": str(row.get("custom_id", "")), "api": APIS[path], "path": path}
    if APIS[path] == "chat":
        fields["messages"] = tuple(body.pop("messages", ()))
        fields["tools"] = tuple(body.pop("tools", None) or ()) or None
    elif isinstance(body.get("prompt"), str):
        fields["text_input"] = body.pop("prompt")
    else:
        fields["input_length"] = 0
    return CaptureRecord(**fields, body=body, model=str(body.get("model", "")))


@dataclass(frozen=True, slots=True)
class FileKind(Generic[Line]):
    """One kind of capture file, and how its lines are read and written."""

    content: str
    parse: Callable[[bytes], Line]
    format: Callable[[Line], bytes]


KINDS: Sequence[FileKind[Any]] = (
    FileKind(RECORDS, parse_record, format_record),
    FileKind(AUDITS, parse_audit, format_audit),
)


def delete_records(options: argparse.Namespace, cipher: MultiFernet | None) -> None:
    """Delete the chosen records. Raises CaptureError before any deletion if a line cannot be read.

    A gateway whose current file is deleted or replaced here continues in a new file.
    """
    is_folder = options.file.is_dir()
    kinds = KINDS if is_folder else KINDS[:1]
    files = [(file, kind) for kind in kinds for file in list_files(options.file, kind.content)]
    if options.all:
        for file, _ in files:
            file.unlink(missing_ok=True)
        if is_folder:
            (options.file / "salt").unlink(missing_ok=True)
        print(f"{len(files)} files deleted", file=sys.stderr)
        return

    def is_deleted(record: CaptureRecord | CapturedAudit) -> bool:
        if options.key is not None:
            return bool(record.key == options.key)
        return bool(options.session == record.session)

    if not options.unreadable:
        check_readable(files, cipher)
    counts: Counter[str] = Counter()
    for file, kind in files:
        file_counts = rewrite_file(file, kind, is_deleted, cipher, options.unreadable)
        counts[kind.content] += file_counts[DELETED]
        counts[UNREADABLE] += file_counts[UNREADABLE]
    print(f"{counts[RECORDS]} requests deleted", file=sys.stderr)
    if options.unreadable:
        print(f"{counts[UNREADABLE]} unreadable parts deleted", file=sys.stderr)


DELETED, UNREADABLE = "deleted", "unreadable"


def check_readable(files: Iterable[tuple[Path, FileKind[Any]]], cipher: MultiFernet | None) -> None:
    """Raise CaptureError, naming the unreadable parts, if a file cannot be read completely."""
    unreadable_parts: list[str] = []
    for file, kind in files:
        deque(parse_lines(file, cipher, unreadable_parts.append, kind.parse), maxlen=0)
    if unreadable_parts:
        raise CaptureError(
            f"nothing was deleted, because {len(unreadable_parts)} parts of the capture cannot be "
            "read and may belong to the requests to delete:\n  "
            + "\n  ".join(unreadable_parts[:MOST_NAMED])
            + "\nGive all keys with --key-file, the retired ones too, or delete these parts as "
            "well with --unreadable."
        )


def rewrite_file(
    file: Path,
    kind: FileKind[Line],
    is_deleted: Callable[[Line], bool],
    cipher: MultiFernet | None,
    unreadable: bool,
) -> Counter[str]:
    """Atomically replace the file by one without the deleted records. Return the counts of removed
    records.

    Unreadable parts are removed too if ``unreadable`` is true; otherwise they raise CaptureError.
    """
    counts: Counter[str] = Counter()

    def skip(reason: str) -> None:
        if not unreadable:
            raise CaptureError(f"{reason}; this file and the files after it are unchanged")
        _warn(reason)
        counts[UNREADABLE] += 1

    def keep() -> Iterator[bytes]:
        for record in parse_lines(file, cipher, skip, kind.parse):
            if is_deleted(record):
                counts[DELETED] += 1
            else:
                yield kind.format(record)

    new_file = file.with_name(f".{file.name}.new")
    os.close(os.open(new_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
    try:
        num_lines = write_lines(new_file, keep(), cipher, is_gzipped(file))
        if num_lines and counts:
            os.utime(new_file, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
            new_file.replace(file)
        elif counts:
            file.unlink()
    finally:
        new_file.unlink(missing_ok=True)
    return counts
