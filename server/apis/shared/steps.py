"""Engine steps in answers with ``return_steps`` (docs/steps.md)."""

from __future__ import annotations

from codecs import getincrementaldecoder
from typing import Any

from eaglegate.engine.events import StepsDelta, TracedStep
from eaglegate.engine.types import Drafter
from eaglegate.server.apis.shared.response import EncodingContext

_Decoder = getincrementaldecoder("utf-8")


class StepWriter:
    """Writes the steps of one choice as JSON objects.

    The texts of the tokens add up to the answer's text: a character that spans several tokens is in
    the text of the last one.
    """

    def __init__(self, context: EncodingContext) -> None:
        self._context = context
        self._decode = _Decoder("replace").decode

    def write(self, delta: StepsDelta) -> list[dict[str, Any]]:
        return [self._write_step(step) for step in delta.steps]

    def _write_step(self, step: TracedStep) -> dict[str, Any]:
        account, pieces = step.account, self._context.pieces
        drafted = 0 if account is None else account.drafted
        accepted = 0 if account is None else account.accepted
        cut = 0 if account is None else account.cut
        out: dict[str, Any] = {
            "index": step.index,
            "kind": step.kind,
            "ms": round(1000 * step.seconds, 3),
            "drafted": drafted,
            "accepted": accepted,
            "cut": cut,
            "tokens": [
                _token(token, self._decode(pieces[token]), number if number <= accepted else None)
                for number, token in enumerate(step.token_ids, 1)
            ],
            "rejected": [
                self._write_rejected(step, position)
                for position in range(accepted + cut + 1, drafted + 1)
            ],
        }
        if account is not None and account.undrafted is not None:
            out["reason"] = account.undrafted
        if account is not None and account.planned is not None:
            out["planned"] = account.planned
        if step.rates:
            out["rates"], out["token_price"] = step.rates, step.token_price
        if account is not None and account.drafter is Drafter.LOOKUP:
            out["drafter"] = account.drafter
        return out

    def _write_rejected(self, step: TracedStep, position: int) -> dict[str, Any]:
        if position > len(step.drafts):
            return _token(None, None, position)
        token = step.drafts[position - 1]
        return _token(token, self._context.token(token), position)


def _token(token: int | None, text: str | None, position: int | None) -> dict[str, Any]:
    return {"id": token, "text": text, "draft_position": position}
