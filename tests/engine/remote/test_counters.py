"""Counters of speculation, read from vLLM's exposition."""

from __future__ import annotations

from eaglegate.engine.remote.probe import parse_totals

TEXT = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="demo"} 10.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="demo"} 4.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="demo"} 1.7e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="demo"} 30.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="demo"} 15.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="demo",position="0"} 9.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="demo",position="2"} 2.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="demo",position="999"} 1.0
vllm:num_requests_running{engine="0"} 1.0
"""


def test_counters_are_summed_over_engines():
    totals = parse_totals(TEXT)
    assert (totals.verify_steps, totals.proposed, totals.accepted) == (14, 30, 15)
    assert totals.accepted_at == (9, 0, 2), "a position nobody drafts makes no room for itself"


def test_a_worker_that_does_not_speculate_tells_nothing():
    assert parse_totals('vllm:num_requests_running{engine="0"} 1.0\n') is None
    assert parse_totals("") is None
