"""The facts about vLLM that inspection states, compared with the installed source.

The source is read, not imported, so that this takes no time. A move of the vLLM pin that changes
one of them fails here.
"""

from __future__ import annotations

import ast
import copy
import re
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglegate.engine.speculation.drafts.inspection.case import METHODS, MTP_METHODS
from eaglegate.engine.speculation.drafts.inspection.config_rules import CONVERTED
from eaglegate.engine.speculation.drafts.inspection.configs import ARCHITECTURES
from eaglegate.engine.speculation.drafts.inspection.general_rules import (
    KEYS,
    MOST_DRAFTED,
    WITHOUT_LOADER,
)
from eaglegate.engine.speculation.drafts.inspection.speculators import (
    FROM_TOP,
    LAYER_IDS,
    LAYER_PART,
    METHOD_OF_TYPE,
    NOT_LOADED,
    convert_as_vllm,
)

SPEC = find_spec("vllm")
pytestmark = pytest.mark.skipif(SPEC is None, reason="vLLM is not installed")


def installed(path: str) -> Path:
    assert SPEC is not None and SPEC.submodule_search_locations
    return Path(SPEC.submodule_search_locations[0]) / path


def source(path: str) -> ast.Module:
    return ast.parse(installed(path).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def conversion() -> ModuleType:
    """vLLM's conversion of the speculators format: one file that imports nothing."""
    spec = spec_from_file_location(
        "algos", installed("transformers_utils/configs/speculators/algos.py")
    )
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def assigned(module: ast.Module, name: str) -> ast.expr:
    for node in module.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return node.value
    raise AssertionError(f"{name} is gone")


def strings(node: ast.AST) -> set[str]:
    return {
        found.value
        for found in ast.walk(node)
        if isinstance(found, ast.Constant) and isinstance(found.value, str)
    }


def test_the_keys_of_the_speculative_config():
    module = source("config/speculative.py")
    config = next(
        node
        for node in module.body
        if isinstance(node, ast.ClassDef) and node.name == "SpeculativeConfig"
    )
    fields = {ast.unparse(node.target) for node in config.body if isinstance(node, ast.AnnAssign)}
    assert fields == KEYS


def test_the_methods():
    module = source("config/speculative.py")
    mtp = strings(assigned(module, "MTPModelTypes"))
    names = ("NgramGPUTypes", "DFlashModelTypes", "DSparkModelTypes", "EagleModelTypes")
    others = set().union(*(strings(assigned(module, name)) for name in names))
    others |= strings(assigned(module, "SpeculativeMethod"))
    assert mtp == MTP_METHODS
    assert mtp | others == METHODS


def test_the_draft_architectures():
    table = assigned(source("model_executor/models/registry.py"), "_SPECULATIVE_DECODING_MODELS")
    assert isinstance(table, ast.Dict)
    modules = {
        ast.literal_eval(key): ast.literal_eval(value)[0]
        for key, value in zip(table.keys, table.values, strict=True)
        if key is not None
    }
    eagle3 = {name for name, module in modules.items() if module.endswith("_eagle3")}
    assert eagle3 == set(ARCHITECTURES)


def test_the_bound_of_the_sampler():
    bound = assigned(source("v1/sample/rejection_sampler.py"), "MAX_SPEC_LEN")
    assert ast.literal_eval(bound) == MOST_DRAFTED


@pytest.mark.parametrize("kind", ["eagle3", "peagle"])
def test_the_speculators_conversion_reads_the_top_level_fields_that_we_copy(kind: str):
    module = source("transformers_utils/configs/speculators/algos.py")
    update = next(
        node
        for node in module.body
        if isinstance(node, ast.FunctionDef) and node.name == f"update_{kind}"
    )
    taken = set(re.findall(r"config_dict(?:\.get\(|\[)'(\w+)'", ast.unparse(update)))
    taken -= {"mask_token_id"}
    assert taken == {*FROM_TOP[kind], "draft_vocab_size", "target_hidden_size", LAYER_IDS}
    assert taken <= CONVERTED


def some(**values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=values)


SWITCH = st.sampled_from([True, False, None])
PART = {
    **dict.fromkeys(("fc_norm", "norm_output", "norm_before_fc", "norm_before_residual"), SWITCH),
    "draft_vocab_size": st.sampled_from([None, 100, 200]),
    "target_hidden_size": st.sampled_from([None, 64, 128]),
    LAYER_IDS: st.sampled_from([None, [], [1, 2, 3], [1, 2]]),
    "num_aux_hidden_states": st.sampled_from([2, 3]),
    "eagle_config": st.sampled_from([{}, {"norm_before_fc": True}]),
}
INNER = some(**PART, model_type=st.sampled_from(["llama", "qwen3"]), hidden_size=st.just(64))


BLOCK = {
    "aux_hidden_state_layer_ids": st.sampled_from([[1, 2], [0, 8]]),
    "mask_token_id": st.sampled_from([5, 0]),
    "sample_from_anchor": st.booleans(),
    "sliding_window_non_causal": st.booleans(),
    "markov_rank": st.sampled_from([None, 0, 8]),
    "selector_rank": st.sampled_from([None, 8]),
    "block_size": st.sampled_from([None, 8]),
    "architectures": st.sampled_from([["DSparkSpeculator"], ["Qwen3OmniDSparkModel"]]),
}


@given(
    kind=st.sampled_from(["dflash", "dflash2", "dspark"]), top=some(**PART, **BLOCK), inner=INNER
)
def test_the_conversion_of_block_drafts_is_vllms(
    conversion: ModuleType, kind: str, top: dict[str, Any], inner: dict[str, Any]
):
    needed = {"aux_hidden_state_layer_ids": [2, 4], "mask_token_id": 5}
    raw = {**needed, **top, "speculators_model_type": kind, LAYER_PART: inner}
    theirs = copy.deepcopy(inner)
    conversion.SUPPORTED_SPECULATORS_TYPES[kind](copy.deepcopy(raw), theirs)
    assert dict(convert_as_vllm(raw)) == theirs


def test_the_types_that_vllm_loads(conversion: ModuleType):
    assert conversion.SUPPORTED_SPECULATORS_TYPES.keys() == METHOD_OF_TYPE.keys()
    assert not METHOD_OF_TYPE.keys() & NOT_LOADED.keys()


def test_the_methods_without_a_loader():
    table = assigned(source("model_executor/models/registry.py"), "_SPECULATIVE_DECODING_MODELS")
    assert "mlp_speculator" not in strings(table)
    assert WITHOUT_LOADER.keys() == {"mlp_speculator"}


@given(kind=st.sampled_from(["eagle3", "peagle"]), top=some(**PART), inner=INNER)
def test_the_conversion_is_vllms(
    conversion: ModuleType, kind: str, top: dict[str, Any], inner: dict[str, Any]
):
    raw = {**top, "speculators_model_type": kind, "mask_token_id": 5, LAYER_PART: inner}
    theirs = copy.deepcopy(inner)
    conversion.SUPPORTED_SPECULATORS_TYPES[kind](copy.deepcopy(raw), theirs)
    assert dict(convert_as_vllm(raw)) == theirs
