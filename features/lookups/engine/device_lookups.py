"""Lookups in the worker of vLLM's second model runner, which keeps drafts on the device.

The tokens of the last step are known there, and only there, when the next drafts are proposed. So
vLLM's own n-gram kernels search each request's tokens beside the draft's pass, and a request's row
of drafts becomes a lookup if its match is as long as the scheduler asks for (``MIN_MATCHES``). That
happens before the drafts are handed over for validation against grammars, because a grammar's
bitmasks hold for the drafts handed over and for no others.

The scheduler learns one step later, with the tokens of the step that verifies them, which proposals
were lookups, and the draft model's own tokens (``PROPOSALS``).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.worker.gpu.async_utils import async_copy_to_np, stream
from vllm.v1.worker.gpu.spec_decode.ngram.speculator import NgramGPUSpeculator

from eaglegate.engine.vllm_contract import DRAFT_DEPTH
from eaglegate.features.lookups.acceptance import MIN_LENGTHS
from eaglegate.features.lookups.engine.contract import MIN_MATCHES, PROPOSALS

NEVER = 1 << 20
"""Length of a match of requests that get no lookups."""


class DeviceLookups:
    """Lookups of one worker's requests. Every tensor has the rows of vLLM's request states, or
    those of a batch."""

    def __init__(self, runner: Any, depth: int) -> None:
        """``depth`` is the draft's own K. ``runner`` is the worker's GPUModelRunner."""
        config, device = runner.vllm_config, runner.device
        num_columns = config.speculative_config.num_speculative_tokens
        bounds = SimpleNamespace(
            prompt_lookup_min=MIN_LENGTHS[0],
            prompt_lookup_max=MIN_LENGTHS[-1],
            num_speculative_tokens=num_columns,
        )
        ngram_config: Any = SimpleNamespace(
            speculative_config=bounds,
            scheduler_config=config.scheduler_config,
            model_config=config.model_config,
        )
        self._states = runner.req_states
        self._ngrams = NgramGPUSpeculator(ngram_config, device, self._states)
        self._columns = torch.arange(num_columns, device=device)
        self._draft_columns = depth
        self._proposals = torch.full(
            (self._states.max_num_reqs, 1 + depth), -1, dtype=torch.int64, device=device
        )
        """Per request: 1 if its row of drafts is a lookup, and the draft model's tokens, or -1."""
        self._verified_proposals: torch.Tensor | None = None
        self._min_matches: Mapping[str, int] = {}
        self.depth: int | None = None
        """The draft's depth after this step; None in vLLM's own warm-up."""

    def begin_step(self, scheduler_output: Any) -> None:
        self.depth = getattr(scheduler_output, DRAFT_DEPTH, None)
        self._min_matches = getattr(scheduler_output, MIN_MATCHES, {})
        self._verified_proposals = None

    def keep_verified(self, batch: Any) -> None:
        """Keep the proposals that a step verifies, before it proposes the next ones."""
        self._verified_proposals = self._proposals[batch.idx_mapping]

    def report(self, runner: Any, sample: Any) -> Any:
        """Return the output of ``sample``, which gets the proposals that the step verified."""
        proposals = self._verified_proposals
        if proposals is None:
            return sample()
        # ``sample`` copies its tokens on the same stream later and waits for that copy, so this one
        # is complete whenever its output is read.
        with stream(runner.output_copy_stream, runner.main_stream):
            runner.output_copy_stream.wait_stream(runner.main_stream)
            host_proposals = async_copy_to_np(proposals)
        output = sample()
        if output is not None:
            output.device_proposals = proposals  # keeps the memory until the copy is complete
            setattr(output.model_runner_output, PROPOSALS, host_proposals)
        return output

    def merge(self, drafts: torch.Tensor, batch: Any, *arguments: Any) -> torch.Tensor:
        """Return the rows to verify: lookups where the match is long enough, else ``drafts``.

        ``arguments`` are the other ones of ``propose``. Columns that nobody proposes repeat the
        last token, as in vLLM's n-grams, because a scheduled column must be a token.
        """
        rows, columns, depth = batch.idx_mapping, self._columns, self.depth
        num_sampled, last_sampled = arguments[4], arguments[6]
        merged = torch.where(columns < depth, drafts, last_sampled[rows])
        is_lookup = torch.zeros_like(rows, dtype=torch.bool)
        min_matches = [self._min_matches.get(name, NEVER) for name in batch.req_ids]
        if min(min_matches) < NEVER:
            lookups = self._ngrams.propose(batch, *arguments)
            # vLLM's score of a match: length * (max_model_len + 1) + position + 1, or 0.
            scores = self._ngrams.scratch[: len(rows)].amax(1) - 1
            stride = self._ngrams.max_model_len + 1
            lengths = torch.where(num_sampled > 0, scores // stride, -1)
            # A match near the end of the text goes on with its own continuation.
            ends = scores % stride + scores // stride
            period = (self._states.total_len.gpu[rows] - ends).clamp(min=1)
            lookups = lookups.gather(1, columns % period[:, None])
            is_lookup = lengths >= async_tensor_h2d(min_matches, rows.device, torch.int64)
            merged = torch.where(is_lookup[:, None], lookups, merged)
        tokens = drafts[:, : self._draft_columns]
        tokens = torch.where(columns[: self._draft_columns] < depth, tokens, -1)
        self._proposals[rows] = torch.cat([is_lookup[:, None], tokens], dim=1)
        return merged
