"""Rules for every method: --speculative-config itself, and drafts other than EAGLE 3."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from importlib.util import find_spec

from eaglegate.engine.speculation.drafts.inspection.case import (
    FROM_TARGET,
    METHODS,
    MODEL_FREE,
    InspectionCase,
    RuleCheck,
    Violation,
    error,
    note,
    warning,
)
from eaglegate.engine.speculation.drafts.inspection.configs import find_mask_token, read_target
from eaglegate.engine.speculation.drafts.inspection.speculators import get_int
from eaglegate.engine.speculation.drafts.lossy import find_lossy
from eaglegate.engine.vllm_contract import describe_untested, find_vllm, is_vllm_since

KEYS = frozenset(
    {
        "enforce_eager", "num_speculative_tokens", "model", "method",
        "draft_tensor_parallel_size", "tensor_parallel_size", "quantization", "moe_backend",
        "attention_backend", "kv_cache_dtype", "max_model_len", "revision", "code_revision",
        "index_share_for_mtp_iteration", "disable_padded_drafter_batch",
        "disable_eagle_block_drop", "use_local_argmax_reduction", "use_heterogeneous_vocab",
        "prompt_lookup_max", "prompt_lookup_min", "parallel_drafting", "target_model_config",
        "target_parallel_config", "num_speculative_tokens_per_batch_size",
        "draft_model_config", "draft_parallel_config", "suffix_decoding_max_tree_depth",
        "suffix_decoding_max_cached_requests", "suffix_decoding_max_spec_factor",
        "suffix_decoding_min_token_prob", "draft_load_config", "rejection_sample_method",
        "synthetic_acceptance_rates", "synthetic_acceptance_length",
        "enable_adaptive_verification", "draft_sample_method", "dspark_draft_topk",
    }
)  # fmt: skip
"""Fields of vLLM 0.32's SpeculativeConfig. A test compares them with the installed vLLM."""
KEYS_SINCE_033 = frozenset(
    {
        "disable_lookahead_block_hashes", "draft_lm_head_quantization", "fly_entropy_threshold",
        "fly_entropy_top_k", "fly_window_size", "xpress_topc",
    }
)  # fmt: skip
ACCEPTANCE_METHODS = frozenset({"standard", "synthetic", "block"})
"""Values of rejection_sample_method in vLLM 0.32."""
ACCEPTANCE_SINCE_033 = frozenset({"fly"})
MOST_DRAFTED = 128
"""Most draft tokens that vLLM's rejection sampler accepts."""
DEEP = 16
"""Depth beyond which no published EAGLE draft gains. Each position costs a forward pass of the
draft."""
KNOWS_DEPTH = frozenset({"suffix", "mlp_speculator"})
"""Methods that define their own K."""
LIBRARIES = {"suffix": ("arctic_inference", "arctic-inference"), "ngram": ("numba", "numba")}
"""Imported module and its package by method. They are optional for vLLM itself."""
EAGLE_FAMILY = ("eagle", "eagle3", "eagle3.1")
JOINED_BY_FC = (["LlamaForCausalLM"], ["EagleLlamaForCausalLM"])
READS_TOKENS = frozenset({*EAGLE_FAMILY, "draft_model"})
"""Methods whose drafts read the embeddings of tokens by themselves."""
TAKES_IMAGES = frozenset({"Llama4ForConditionalGeneration"})
"""Targets whose EAGLE drafts get the embeddings of images."""
SHARES_WIDTH = frozenset({"eagle", "medusa"})
WITHOUT_LOADER = {
    "mlp_speculator": "use another draft: its loader is switched off since vLLM's V1 engine",
}
REMOVED_IN_033 = dict.fromkeys(("medusa", "mlp_speculator"), "use another draft: it was removed")
LAYER_COUNTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")


def check_unknown_keys(case: InspectionCase) -> Iterator[Violation]:
    keys = KEYS | KEYS_SINCE_033 if is_vllm_since(0, 33) else KEYS
    for key in sorted(set(case.settings) - keys):
        matches = get_close_matches(key, keys, 1)
        yield error(
            f"--speculative-config has {key!r}, which vLLM refuses",
            f"did you mean {matches[0]!r}?" if matches else "remove it",
        )
    if "tensor_parallel_size" in case.settings:
        yield error(
            "--speculative-config has 'tensor_parallel_size', which vLLM refuses",
            "use 'draft_tensor_parallel_size'",
        )


def check_unknown_method(case: InspectionCase) -> Iterator[Violation]:
    method = case.settings.get("method")
    if method is None or case.method in METHODS:
        return
    matches = get_close_matches(str(method), METHODS, 1, 0.5)
    if "eagle" in str(method).lower():
        advice = 'EAGLE 3 and EAGLE 3.1 both run as "method": "eagle3"'
    else:
        advice = (
            f"did you mean {matches[0]!r}?"
            if matches
            else "use one of " + ", ".join(sorted(METHODS))
        )
    yield error(f"method {method!r} is not one of vLLM's", advice)


def check_method_given(case: InspectionCase) -> Iterator[Violation]:
    if "method" in case.settings or case.kind is None or case.kind == case.method:
        return
    yield error(
        f"no 'method' is given, and vLLM would take this {case.kind} draft for {case.method!r}",
        f'add "method": "{case.kind}"',
    )


def check_method_match(case: InspectionCase) -> Iterator[Violation]:
    if "method" not in case.settings or case.kind is None or case.kind == case.method:
        return
    if case.method not in METHODS or case.method in MODEL_FREE:
        return
    if case.kind == "draft_model" and case.method in FROM_TARGET:
        return
    description = "a complete model" if case.kind == "draft_model" else f"made for {case.kind!r}"
    yield error(
        f"method is {case.method!r}, but the draft's files are {description}",
        f'use "method": "{case.kind}", or name another draft',
    )


def check_depth(case: InspectionCase) -> Iterator[Violation]:
    setting = case.settings.get("num_speculative_tokens")
    if setting is None:
        if case.method not in FROM_TARGET | KNOWS_DEPTH:
            yield error("num_speculative_tokens is missing", "give K, for instance 3")
        return
    depth = get_int(case.settings, "num_speculative_tokens")
    if depth is None or depth < 1:
        yield error(f"num_speculative_tokens is {setting!r}", "give a whole number of at least 1")
    elif depth > MOST_DRAFTED:
        yield error(
            f"num_speculative_tokens is {depth}; vLLM's sampler dies above {MOST_DRAFTED}",
            "EAGLE drafts do best with 2 to 7",
        )
    elif case.served_len is not None and depth >= case.served_len:
        yield error(
            f"num_speculative_tokens is {depth} with max_model_len {case.served_len}",
            "give a K far below the longest request",
        )
    elif depth > DEEP and case.method in EAGLE_FAMILY:
        yield warning(
            f"num_speculative_tokens is {depth}: late positions are almost never accepted",
            "EAGLE drafts do best with 2 to 7",
        )


def check_model_given(case: InspectionCase) -> Iterator[Violation]:
    if case.settings.get("model") is None and case.method not in MODEL_FREE | FROM_TARGET:
        yield error(f"method {case.method!r} needs a draft and no 'model' is given", "add 'model'")


def check_draft_parallelism(case: InspectionCase) -> Iterator[Violation]:
    ranks = case.settings.get("draft_tensor_parallel_size")
    choices = (1, case.tensor_parallel_size)
    if ranks is not None and ranks not in choices:
        yield error(
            f"draft_tensor_parallel_size is {ranks!r} with tensor parallel size {choices[1]}",
            f"vLLM takes only 1 or {choices[1]}",
        )


def check_draft_length(case: InspectionCase) -> Iterator[Violation]:
    length = get_int(case.settings, "max_model_len")
    draft_limit = case.draft.max_positions if case.checkpoint else None
    for limit, owner in ((case.served_len, "the target's"), (draft_limit, "the draft's")):
        if length is not None and limit is not None and length > limit:
            yield error(
                f"max_model_len {length} in --speculative-config exceeds {owner} {limit}",
                f"give at most {limit}, or leave it out",
            )


def check_lossy(case: InspectionCase) -> Iterator[Violation]:
    """Warn about inexact acceptance, which is the only setting of speculation that changes text."""
    for sentence in find_lossy(case.settings):
        yield warning(f"LOSSY: {sentence}", "leave it out where text matters; see docs/drafts.md")


def check_acceptance_method(case: InspectionCase) -> Iterator[Violation]:
    """Check the acceptance method, but only with the vLLM version that this list describes."""
    method = case.settings.get("rejection_sample_method")
    package = find_vllm()
    is_newer = is_vllm_since(0, 33)
    methods = ACCEPTANCE_METHODS | ACCEPTANCE_SINCE_033 if is_newer else ACCEPTANCE_METHODS
    if method is None or method in methods or package is None or describe_untested():
        return
    yield error(
        f"vLLM {package[1]} has no rejection_sample_method {method!r}",
        "vLLM 0.33 has it"
        if method in ACCEPTANCE_SINCE_033
        else f"use {', '.join(sorted(methods))}",
    )


def check_lookup_window(case: InspectionCase) -> Iterator[Violation]:
    minimum, maximum = (get_int(case.settings, f"prompt_lookup_{end}") for end in ("min", "max"))
    if case.method == "ngram" and minimum is not None and maximum is not None and minimum > maximum:
        yield error(
            f"prompt_lookup_min {minimum} exceeds prompt_lookup_max {maximum}", "exchange the two"
        )


def check_library(case: InspectionCase) -> Iterator[Violation]:
    module, package = LIBRARIES.get(case.method, ("", ""))
    if module and find_spec(module) is None:
        yield error(
            f"method {case.method!r} needs the package {package}, which is not installed",
            f"pip install {package}",
        )


def check_pickled_weights(case: InspectionCase) -> Iterator[Violation]:
    if case.checkpoint and case.checkpoint.pickled:
        yield note(
            f"the weights ({case.checkpoint.pickled}) cannot be listed without running their code",
            "convert them to safetensors to have names, shapes and maps checked",
        )


def check_same_vocabulary(case: InspectionCase) -> Iterator[Violation]:
    if case.checkpoint is None or case.target is None:
        return
    if case.method not in ("draft_model", "eagle") or case.settings.get("use_heterogeneous_vocab"):
        return
    draft_size, target_size = read_target(case.draft.raw).vocab_size, case.target.vocab_size
    if draft_size is not None and target_size is not None and draft_size != target_size:
        yield error(
            f"the draft's vocab_size is {draft_size}, the target's {target_size}",
            'use a draft with the target\'s tokenizer, or "use_heterogeneous_vocab": true'
            if case.method == "draft_model"
            else "use the draft made for this target",
        )


def check_same_width(case: InspectionCase) -> Iterator[Violation]:
    if case.method not in SHARES_WIDTH or case.checkpoint is None or case.target is None:
        return
    draft_width, width = case.draft.hidden_size, case.target.hidden_size
    if draft_width is not None and width is not None and draft_width != width:
        yield error(
            f"the draft's hidden size is {draft_width}, the target's {width}",
            "use the draft made for this target",
        )


def check_eagle_fc(case: InspectionCase) -> Iterator[Violation]:
    shape, hidden_size = case.shape_of("fc.weight"), case.draft.hidden_size
    if case.method != "eagle" or not case.tensors or hidden_size is None:
        return
    if case.draft.read.get("architectures") not in JOINED_BY_FC:
        return
    if shape is None:
        yield error("an EAGLE draft without fc.weight", "export the draft again, complete")
    elif shape != (hidden_size, 2 * hidden_size):
        yield error(
            f"fc.weight is {list(shape)}, an EAGLE draft's is {[hidden_size, 2 * hidden_size]}",
            "correct hidden_size, or use the method the draft is made for",
        )


def check_mtp_layers(case: InspectionCase) -> Iterator[Violation]:
    """Check K against the number of MTP layers in the target's config.json."""
    if case.method != "mtp" or case.target is None or case.settings.get("model"):
        return
    counts = [get_int(case.target.config, key) for key in LAYER_COUNTS]
    num_layers = next((count for count in counts if count is not None), None)
    depth = get_int(case.settings, "num_speculative_tokens")
    if num_layers is None:
        yield note("the target's config.json counts no MTP layers", "some models do not say so")
    elif num_layers < 1:
        yield error("the target has no MTP layers", "use another method")
    elif num_layers and depth and depth > num_layers and depth % num_layers:
        yield error(
            f"num_speculative_tokens is {depth} with {num_layers} MTP layers",
            f"give a multiple of {num_layers}",
        )


def check_images(case: InspectionCase) -> Iterator[Violation]:
    """vLLM gives a draft the embeddings of images only if its class takes them, which those of MTP
    do, and Llama 4's EAGLE."""
    if case.target is None or not case.target.reads_images or case.checkpoint is None:
        return
    if case.method not in READS_TOKENS or TAKES_IMAGES & set(case.target.architectures):
        return
    state = "" if case.method == "draft_model" else " and the target's hidden states"
    yield note(
        f"under an image the draft reads only the placeholder's embedding{state}",
        "compare acceptance after images (input=images) with that of text",
    )


def check_mask_token(case: InspectionCase) -> Iterator[Violation]:
    """Check the mask token, with which parallel drafting fills the positions that it predicts."""
    is_parallel = case.settings.get("parallel_drafting") and case.method in (
        "eagle3",
        "draft_model",
    )
    if case.checkpoint is None or not is_parallel:
        return
    if not case.draft.speculators or case.kind is not None:
        yield from check_mask_id(case)


def check_mask_id(case: InspectionCase) -> Iterator[Violation]:
    """Check that the mask token is named and has an embedding."""
    entry = find_mask_token(case.draft.read)
    if entry is None or entry[1] is None:
        yield error(
            "parallel drafting needs a mask token, and config.json names none",
            f"write the id it was trained with, as {entry[0] if entry else 'mask_token_id'}",
        )
        return
    key, value = entry
    rows = find_embedding_rows(case)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        yield error(f"{key} is {value!r}", "write the id it was trained with")
    elif rows is not None and value >= rows:
        yield error(
            f"{key} is {value}, outside of the {rows} tokens that have an embedding",
            "write the id it was trained with, or use the draft made for this target",
        )


def find_embedding_rows(case: InspectionCase) -> int | None:
    """Return the rows of the draft's own embedding, else of the target's, which the draft
    shares."""
    for name in ("embed_tokens.weight", "model.embed_tokens.weight"):
        shape = case.shape_of(name)
        if shape:
            return shape[0]
    if case.method != "draft_model" and case.target is not None and case.target.vocab_size:
        return case.target.vocab_size
    return read_target(case.draft.read).vocab_size


def check_loader(case: InspectionCase) -> Iterator[Violation]:
    is_newer = is_vllm_since(0, 33)
    reason = (REMOVED_IN_033 if is_newer else WITHOUT_LOADER).get(case.method)
    if reason is not None:
        series = "0.33" if is_newer else "0.32"
        yield error(f"vLLM {series} does not load drafts of method {case.method!r}", reason)


RULES: dict[str, RuleCheck] = {
    "setting-unknown": check_unknown_keys,
    "method-unknown": check_unknown_method,
    "method-absent": check_method_given,
    "method-mismatch": check_method_match,
    "depth": check_depth,
    "draft-absent": check_model_given,
    "draft-parallelism": check_draft_parallelism,
    "draft-length": check_draft_length,
    "lossy": check_lossy,
    "acceptance-method": check_acceptance_method,
    "lookup-window": check_lookup_window,
    "library": check_library,
    "weights-pickled": check_pickled_weights,
    "same-vocabulary": check_same_vocabulary,
    "same-width": check_same_width,
    "eagle-fc": check_eagle_fc,
    "mtp-layers": check_mtp_layers,
    "mask-token": check_mask_token,
    "images": check_images,
    "method-loader": check_loader,
}
