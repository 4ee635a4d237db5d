"""Does ``eaglegate drafts compare`` predict what drafts do when they serve?

    python -m eaglegate.lab.benchmarks.prediction --out DIR [--requests 48] [--steps 120]

Six drafts of the demo (EAGLE 3 and 3.1 as shipped; short trainings of another seed, that of 3.1 on
chat alone; the latter tuned to tools; one with noise in its weights) and four kinds of traffic
(chat, tools, long prompts, sampled chat). All of them are served, one after the other, on the same
traffic: drafts of one shape take turns in one engine (`POST /admin/draft`). What the run of the
shipped EAGLE 3.1 captured is given to ``eaglegate drafts compare``, which predicts all six; what
each run captured is its life.

A draft is right where its live acceptance length lies in the predicted interval. The difference of
the two is given, too, paired by request: for greedy traffic it shows errors far smaller than that
interval. Every draft has prefixes of its own (`cache_salt`): with those of another draft it would
read that draft's keys and values.

Parts that are done are left as they are, so that the same command goes on: drafts, captures,
unrolled answers. Each part alone: ``--only drafts``, ``live`` or ``compare``. With
``--draft-sample-method probabilistic`` the engine samples its drafts (`--traffic sampled`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import httpx

from eaglegate.capture.files import read_records, write_records
from eaglegate.capture.record import CaptureRecord
from eaglegate.engine.speculation.drafts import fingerprint_draft
from eaglegate.lab.benchmarks.improve_data import TARGET
from eaglegate.lab.benchmarks.prediction_data import METHODS, SHIPPED, make_drafts, make_traffic
from eaglegate.lab.measure import drafts_command
from eaglegate.lab.measure.drafts import ALL, DraftReplay, ServedLength, compare_served
from eaglegate.lab.measure.drafts_answers import observe_served, read_answers
from eaglegate.lab.measure.drafts_report import format_served
from eaglegate.lab.measure.report import format_table, write_json
from eaglegate.lab.measure.servers import demo_flags
from tests.conftest import ADMIN, RunningGateway, serving

DEPTH = 5
AT_ONCE = 8
PREDICTS = "eagle3.1"
"""The draft whose run is the capture that predictions are made of."""


@dataclass(frozen=True)
class Judgement:
    """One draft on one kind of traffic, by slice."""

    traffic: str
    draft: str
    slices: Mapping[str, ServedLength]
    expected: Mapping[str, Any] | None
    """Predicted by the target's probabilities; of sampled traffic."""
    answers: int
    same_texts: int
    """Answers that are those of the capture."""
    same_steps: int
    """Number of these answers with as many steps and accepted drafts as predicted."""

    def to_json(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


async def send_all(url: str, bodies: Sequence[dict[str, Any]]) -> None:
    room = asyncio.Semaphore(AT_ONCE)

    async def send(client: httpx.AsyncClient, body: dict[str, Any]) -> None:
        async with room:
            answer = await client.post("/v1/chat/completions", json=body | {"stream": False})
        assert answer.status_code == 200, answer.text

    async with httpx.AsyncClient(base_url=url, timeout=600) as client, asyncio.TaskGroup() as group:
        for body in bodies:
            group.create_task(send(client, body))


def serve_method(
    out: Path,
    labels: Sequence[str],
    drafts: Mapping[str, Path],
    bodies: Sequence[dict[str, Any]],
    sample_method: str,
) -> None:
    """Every draft in turn on all traffic, captured in ``out``."""
    captured = out.with_name(f"{out.name}.unfinished")
    shutil.rmtree(captured, ignore_errors=True)
    settings = {"num_speculative_tokens": DEPTH, "draft_sample_method": sample_method}
    flags = demo_flags(TARGET, drafts[labels[0]], **settings)
    flags += (*ADMIN, "--responses-store=none", "--capture-share=1", f"--capture={captured}")
    with serving(out.with_name(f"{out.name}.log"), flags) as gateway:
        for label in labels:
            swap(gateway, drafts[label])
            asyncio.run(send_all(gateway.url, [one | {"cache_salt": label} for one in bodies]))
            print(f"served {label}: {len(bodies)} requests", flush=True)
    captured.rename(out)


def swap(gateway: RunningGateway, draft: Path) -> None:
    serving_now = httpx.get(f"{gateway.operator}/admin/draft").json()["serving"]
    wanted = fingerprint_draft(draft)
    if serving_now["fingerprint"] != wanted:
        answer = httpx.post(
            f"{gateway.operator}/admin/draft", json={"path": str(draft)}, timeout=120
        )
        assert answer.status_code == 200, answer.text
        assert answer.json()["serving"]["fingerprint"] == wanted


def split(out: Path, drafts: Mapping[str, Path]) -> None:
    """A file per traffic and draft, in which a request has the same name for every draft."""
    found: dict[tuple[str, str], list[CaptureRecord]] = {}
    prints = {fingerprint_draft(path): label for label, path in drafts.items()}
    captures = [path for method in METHODS if (path := out / f"capture-{method}").is_dir()]
    for captured in captures:
        for record in read_records(captured):
            user = (record.body or {})["user"]
            named = replace(record, id=user, session=user)
            found.setdefault((user.partition("-")[0], prints[record.draft]), []).append(named)
    for (traffic, label), records in found.items():
        (out / traffic).mkdir(exist_ok=True)
        write_records(out / traffic / f"{label}.jsonl", sorted(records, key=lambda one: one.id))


def judge(folder: Path, drafts: Mapping[str, Path], sample_method: str) -> Iterator[Judgement]:
    """The tournament on one kind of traffic, and how it went in life."""
    argv = ["compare", str(folder / f"{PREDICTS}.jsonl"), f"--out={folder / 'compared'}"]
    argv += [f"--depth={DEPTH}", f"--draft-sample-method={sample_method}"]
    argv += [*(f"--draft={label}={path}" for label, path in drafts.items())]
    made = drafts_command.compare(drafts_command.make_parser().parse_args(argv[1:]))
    drafts_command.write_report(made, argv)
    report = json.loads((folder / "compared" / "report.json").read_text())
    captured = {one.facts.id: one for one in made.found}
    for label in drafts:
        served, _ = read_answers(read_records(folder / f"{label}.jsonl"))
        alike = {
            o.facts.id
            for o in served
            if o.choice.token_ids == captured[o.facts.id].choice.token_ids
        }
        # A capture knows phases to the step, and steps differ: of the same text they are the same.
        served = [
            replace(one, facts=captured[one.facts.id].facts) if one.facts.id in alike else one
            for one in served
        ]
        live, predicted = observe_served(served, DEPTH), made.observe(label)
        expected = report["drafts"][label]["expected"][str(DEPTH)]
        yield Judgement(
            folder.name,
            label,
            compare_served(live, predicted, DEPTH),
            expected if report["sampled"] else None,
            len(served),
            len(alike),
            count_same_steps(live, predicted, alike),
        )


def count_same_steps(
    live: Sequence[DraftReplay], predicted: Sequence[DraftReplay], among: set[str]
) -> int:
    def read(observed: Sequence[DraftReplay]) -> dict[str, tuple[float, float]]:
        walks = {one.facts.id: one.walks[DEPTH][ALL] for one in observed}
        return {name: (walk.steps, walk.accepted) for name, walk in walks.items() if name in among}

    found = read(predicted)
    return sum(found[name] == steps for name, steps in read(live).items())


def format_judgements(found: Sequence[Judgement], title: str) -> str:
    head = ["traffic", "draft", "slice", "live", "predicted", "live - predicted", "inside"]
    rows = [
        [one.traffic, one.draft, *format_served(name, served)]
        for one in found
        for name, served in one.slices.items()
        if (name == ALL) == (title == ALL)
    ]
    return format_table(head, rows)


def format_exactness(found: Sequence[Judgement]) -> str:
    rows = [
        [one.traffic, one.draft, str(one.answers), str(one.same_texts), str(one.same_steps)]
        for one in found
    ]
    return format_table(["traffic", "draft", "answers", "same text", "and same steps"], rows)


def count_right(found: Sequence[Judgement]) -> str:
    """Count the correct predictions, in words."""
    parts = [(name, one) for each in found for name, one in each.slices.items()]
    lines = []
    for title, chosen in (
        ("draft and traffic", [one for name, one in parts if name == ALL]),
        ("slice and phase", [one for name, one in parts if name != ALL]),
    ):
        judged = [one for one in chosen if one.is_inside is not None]
        zero = [one for one in chosen if one.difference and not one.difference.excludes(0.0)]
        lines.append(
            f"by {title}: {sum(bool(one.is_inside) for one in judged)} of {len(judged)} live "
            f"lengths lie in the predicted interval; {len(zero)} of {len(chosen)} intervals of "
            "the difference do not exclude 0"
        )
    return "\n".join(lines)


def choose_drafts(given: argparse.Namespace, out: Path) -> dict[str, Path]:
    """Choose drafts by label. Only shipped drafts need no training."""
    drafts = {label: SHIPPED[label] for label in given.drafts if label in SHIPPED}
    if len(drafts) == len(given.drafts):
        return drafts
    made = make_drafts(out / "drafts", given.steps, given.threads)
    return {label: made[label] for label in given.drafts}


def serve_all(given: argparse.Namespace, out: Path, drafts: Mapping[str, Path]) -> None:
    traffic = make_traffic(given.requests)
    bodies = [body for name in given.traffic for body in traffic[name]]
    for method, labels in METHODS.items():
        chosen = [label for label in labels if label in drafts]
        captured = out / f"capture-{method}"
        if chosen and not captured.exists():
            serve_method(captured, chosen, drafts, bodies, given.draft_sample_method)


def compare_all(given: argparse.Namespace, out: Path, drafts: Mapping[str, Path]) -> None:
    split(out, drafts)
    found = [
        one
        for name in given.traffic
        for one in judge(out / name, drafts, given.draft_sample_method)
    ]
    write_json(out / "report.json", found)
    print(format_judgements(found, ALL), format_judgements(found, ""), sep="\n\n")
    print(f"\n{format_exactness(found)}\n\n{count_right(found)}")


def make_parser() -> argparse.ArgumentParser:
    known = [label for labels in METHODS.values() for label in labels]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=48, help="of each kind; of long ones half")
    parser.add_argument("--steps", type=int, default=120, help="of the drafts that are trained")
    parser.add_argument("--threads", type=int, default=1, help="of trainings")
    parser.add_argument("--drafts", nargs="+", default=known, help=f"{PREDICTS} and others")
    parser.add_argument("--traffic", nargs="+", default=["chat", "tools", "long", "sampled"])
    parser.add_argument(
        "--draft-sample-method", choices=("greedy", "probabilistic"), default="greedy"
    )
    parser.add_argument("--only", choices=("drafts", "live", "compare"))
    return parser


def main() -> int:
    given = make_parser().parse_args()
    out: Path = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    drafts = choose_drafts(given, out)
    if given.only in (None, "live"):
        serve_all(given, out, drafts)
    if given.only in (None, "compare"):
        compare_all(given, out, drafts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
