"""The report of ``eaglegate drafts compare --lookup N``: JSON, text, and one page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eaglegate.lab.measure.drafts import ALL
from eaglegate.lab.measure.report import (
    Conclusion,
    Page,
    format_estimate,
    format_number,
    format_ratio,
    format_share,
    format_table,
    write_json,
)
from eaglegate.lab.measure.statistics import Estimate, Verdict, judge_ratio

REPEATS = {
    Verdict.BETTER: "This traffic repeats enough for lookups",
    Verdict.SAME: "This traffic does not repeat enough for lookups",
    Verdict.WORSE: "This traffic does not repeat enough for lookups",
    Verdict.UNKNOWN: "Too little traffic to tell whether lookups pay",
}


@dataclass(frozen=True, slots=True)
class LookupsReport:
    """Report of an estimate. ``summary`` holds the keys that ``drafts_command`` gives it."""

    run: Mapping[str, Any]
    summary: Mapping[str, Any]

    def write(self, folder: Path) -> None:
        write_json(folder / "report.json", {**self.run, **self.summary})
        page = Page("eaglegate drafts compare --lookup", self.conclude())
        page.add_table(*self.make_table())
        page.add_run(self.run)
        (folder / "report.html").write_text(page.render(), encoding="utf-8")

    def render_text(self) -> str:
        table = format_table(*self.make_table())
        return "\n".join([*self.conclude().lines, "", table, "", f"$ {self.run['command']}"])

    def conclude(self) -> Conclusion:
        """Say first whether the traffic repeats, and what lookups would gain."""
        summary, total = self.summary, self.summary["slices"][ALL]
        name, gain = list_known_gains(total["gains"])[-1]
        finding = judge_ratio(gain, lower_is_better=False)
        speed = format_ratio(gain) or f"{gain.value:.2f}x"
        doubt = f", {finding.reason}" if finding.verdict is Verdict.UNKNOWN else ""
        verdict = (
            f"{REPEATS[finding.verdict]}: a lookup predicts {total['predicted']:.0%} of the "
            f"tokens, and decoding with lookups of up to {summary['lookup']} tokens is estimated "
            f"at {speed} the speed of the serving draft alone ({name}{doubt})"
        )
        answers = (
            f"{summary['answers']} answers of {summary['sessions']} sessions; "
            f"{summary['left_out']} left out"
        )
        return Conclusion(finding.verdict, (verdict, summary["cost"], summary["twin"], answers))

    def make_table(self) -> tuple[list[str], list[list[str]]]:
        slices = self.summary["slices"]
        head = ["slice", "tokens", "predicted", "tokens per step", *slices[ALL]["gains"]]
        rows = [
            [
                name,
                format_number(row["tokens"], 4),
                format_share(row["predicted"]),
                format_number(row["tokens_per_step"]),
                *(format_estimate(row["gains"].get(variant)) for variant in slices[ALL]["gains"]),
            ]
            for name, row in slices.items()
        ]
        return head, rows


def list_known_gains(gains: Mapping[str, Estimate | None]) -> list[tuple[str, Estimate]]:
    """Return the gains of lookups that know the tokens of the step before, the twin's last."""
    return [(name, gain) for name, gain in gains.items() if gain is not None and "late" not in name]
