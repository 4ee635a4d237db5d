"""Scoring of answers inside vLLM's workers, where the logits are.

A request whose ``extra_args`` carry ``vllm_fields.AUDIT`` is an answer to audit. Its tokens are the
prompt and the answer without its last token. Both model runners hold the hidden states of a whole
prompt at the point where they would compute prompt log probabilities. There this module computes
the logits of the answer's positions and scores them, chunk by chunk. The scores stay in the worker
until the front end takes them; no row of logits leaves it.

A scoring error affects only the audit, and is returned in place of the scores.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

import torch
from vllm.sampling_params import SamplingParams

from eaglegate.engine.speculation.accounts.scores import ScoringRules
from eaglegate.engine.vllm_backend.prompt_rows import Logits, adapt_rows
from eaglegate.engine.vllm_fields import AUDIT
from eaglegate.engine.vllm_parts import Promise
from eaglegate.features.audit.engine.scoring import AnswerScorer, AuditedTokens

log = logging.getLogger(__name__)

PROMISE = Promise.AUDITS
MAX_AUDITS = 64
"""Most audits, running or finished, that a worker remembers."""
BLOCK_ROWS = 256
"""Number of positions whose logits are computed at a time."""


class Audit:
    """An answer that is being scored."""

    def __init__(self, key: str, tokens: AuditedTokens) -> None:
        self.key = key
        self._tokens = tokens
        self._scorer = AnswerScorer(tokens)
        self._error = ""

    @classmethod
    def of(cls, prompt: list[int], params: SamplingParams) -> Audit:
        """Make an audit. ``prompt`` is the prompt followed by the answer without its last token."""
        fields = dict(params.extra_args[AUDIT])
        key = fields.pop("key")
        rules = ScoringRules.from_fields(fields)
        tokens = AuditedTokens(
            rules,
            prompt[: rules.prompt_tokens],
            [*prompt[rules.prompt_tokens :], rules.last],
            sorted(params.all_stop_token_ids),
            params.bad_words_token_ids or (),
        )
        return cls(key, tokens)

    def add(self, first_position: int, states: torch.Tensor, compute_logits: Logits) -> None:
        """Score positions. ``states`` are the hidden states from ``first_position`` on."""
        positions = self._tokens.scored_positions
        begin, end = (
            max(first_position, positions.start),
            min(first_position + len(states), positions.stop),
        )
        for position in range(begin, end, BLOCK_ROWS):
            logits = compute_logits(
                states[position - first_position : min(position + BLOCK_ROWS, end) - first_position]
            )
            if logits is not None and not self._error:
                self._score(position - positions.start + self._tokens.rules.first, logits)

    def _score(self, place: int, logits: torch.Tensor) -> None:
        try:
            self._scorer.add(place, logits)
        except Exception as error:
            self._error = type(error).__name__

    def to_fields(self) -> dict[str, Any]:
        """Return the fields of ``AnswerScores``, or ``error``."""
        if self._error:
            return {"error": self._error}
        try:
            scores = self._scorer.finish()
        except ValueError as error:
            return {"error": str(error)}
        return {
            "margins": list(scores.margins),
            "best": list(scores.best),
            "evidence": dict(scores.evidence or {}),
            "judged": scores.judged,
        }


class AuditRegister:
    """Audits of a worker by the engine's request ids."""

    def __init__(self) -> None:
        self._audits: OrderedDict[str, Audit] = OrderedDict()

    def find(self, req_id: str, prompt: list[int] | None, params: Any) -> Audit | None:
        """Return the audit of a request; None if the request is not an audit."""
        if prompt is None or params is None or AUDIT not in (params.extra_args or {}):
            return None
        audit = self._audits.get(req_id)
        if audit is None:
            audit = self._audits[req_id] = Audit.of(prompt, params)
            while len(self._audits) > MAX_AUDITS:
                self._audits.popitem(last=False)
        return audit

    def get(self, req_id: str) -> Audit | None:
        return self._audits.get(req_id)

    def take(self, key: str) -> dict[str, Any] | None:
        """Remove and return the scores under this key; None if there are none."""
        for req_id, audit in self._audits.items():
            if audit.key == key:
                del self._audits[req_id]
                return audit.to_fields()
        return None


audits = AuditRegister()
"""Audits of this worker's process."""


def take_scores(worker: Any, key: str) -> dict[str, Any] | None:  # noqa: ARG001
    """Remove and return the scores of an audit; None if this worker has none. A method that vLLM's
    worker gets, for the gateway's process."""
    return audits.take(key)


def get_prompt_logprobs(
    original: Callable[..., Any],
    runner: Any,
    hidden_states: torch.Tensor,
    num_scheduled_tokens: Mapping[str, int],
) -> Any:
    """Replace the first runner's ``GPUModelRunner._get_prompt_logprobs_dict``, and score audits."""
    numbers = runner.num_prompt_logprobs
    if not numbers:
        return original(runner, hidden_states, num_scheduled_tokens)
    compute_logits = adapt_rows(runner.model, hidden_states)
    for req_id in [*numbers]:
        request = runner.requests[req_id]
        audit = audits.find(req_id, request.prompt_token_ids, request.sampling_params)
        if audit is None:
            continue
        if tokens := num_scheduled_tokens.get(req_id, 0):
            row = runner.input_batch.req_id_to_index[req_id]
            begin = int(runner.query_start_loc.np[row])
            states = hidden_states[begin : begin + tokens]
            audit.add(request.num_computed_tokens, states, compute_logits)
    audit_numbers = {req_id: number for req_id, number in numbers.items() if audits.get(req_id)}
    runner.num_prompt_logprobs = {key: numbers[key] for key in numbers if key not in audit_numbers}
    try:
        return original(runner, hidden_states, num_scheduled_tokens)
    finally:
        runner.num_prompt_logprobs |= audit_numbers


def add_request(
    original: Callable[..., None], worker: Any, req_id: str, req_idx: int, params: SamplingParams
) -> None:
    """Replace the second runner's ``PromptLogprobsWorker.add_request``, and leave audits out."""
    original(worker, req_id, req_idx, params)
    if AUDIT in (params.extra_args or {}):
        worker.uses_prompt_logprobs[req_idx] = False
        worker.audit_params = {**getattr(worker, "audit_params", {}), req_id: params}


def remove_request(original: Callable[..., None], worker: Any, req_id: str) -> None:
    original(worker, req_id)
    getattr(worker, "audit_params", {}).pop(req_id, None)


def compute_prompt_logprobs(
    original: Callable[..., Any],
    worker: Any,
    logits_fn: MethodType,
    hidden_states: torch.Tensor,
    batch: Any,
    all_token_ids: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    prompt_lens: Any,
) -> Any:
    """Replace ``PromptLogprobsWorker.compute_prompt_logprobs``, and score audits."""
    compute_logits = adapt_rows(logits_fn.__self__, hidden_states)
    audit_params = getattr(worker, "audit_params", {})
    for row, req_id in enumerate(batch.req_ids) if audit_params else ():
        if req_id not in audit_params:
            continue
        try:
            index = batch.idx_mapping_np[row]
            prompt = all_token_ids[index, : int(prompt_lens[index])].tolist()
            audit = audits.find(req_id, prompt, audit_params[req_id])
            begin, end = map(int, batch.query_start_loc_np[row : row + 2])
            first_position = int(batch.num_computed_prefill_tokens_np[row])
            if audit is not None:
                audit.add(first_position, hidden_states[begin:end], compute_logits)
        except Exception as error:
            log.warning("an audit failed in the worker: %s", type(error).__name__)
    arguments = hidden_states, batch, all_token_ids, num_computed_tokens, prompt_lens
    return original(worker, logits_fn, *arguments)


def patch(wrap: Callable[[Any, str, Callable[..., Any]], None], worker: Any) -> None:
    from vllm.v1.worker.gpu.sample.prompt_logprob import PromptLogprobsWorker
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    worker.take_scores = take_scores
    wrap(GPUModelRunner, "_get_prompt_logprobs_dict", get_prompt_logprobs)
    for method in (add_request, remove_request, compute_prompt_logprobs):
        wrap(PromptLogprobsWorker, method.__name__, method)
