"""Rules about an EAGLE 3 draft's config.json: its flags and their places, the fit to the target,
and the target's layers that the draft reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from eaglegate.engine.speculation.drafts.inspection.case import (
    InspectionCase,
    RuleCheck,
    Violation,
    error,
    note,
    warning,
)
from eaglegate.engine.speculation.drafts.inspection.configs import ARCHITECTURES, DecoderLayer
from eaglegate.engine.speculation.drafts.inspection.speculators import (
    LAYER_IDS,
    LAYER_PART,
    TYPE,
    get_mapping,
)

FLAGS = (
    "fc_norm", "norm_output", "norm_before_fc", "norm_before_residual", "target_hidden_size",
    "num_aux_hidden_states", LAYER_IDS, "draft_vocab_size", "eagle_config",
    "use_aux_hidden_state", "max_position_embeddings",
)  # fmt: skip
"""Keys whose misspellings vLLM does not notice."""
SIZES = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
)  # fmt: skip
UNDEFAULTED = ("rms_norm_eps", "hidden_act")
"""Keys without a default in the speculators format, because vLLM reads them from a bare config."""
STRICT_HEADS = ("llama", "deepseek_v2")
"""Model types whose hidden size must divide by the heads even if head_dim is given."""
NEAR = 0.82
TOP, NESTED, INNER = "the top level", "eagle_config", LAYER_PART
NESTED_TOO = frozenset({"norm_before_fc", LAYER_IDS})
NESTED_ONLY = frozenset({"use_aux_hidden_state"})
CONVERTED = frozenset(
    {
        "draft_vocab_size", "target_hidden_size", "norm_before_residual",
        "norm_before_fc", "fc_norm", "norm_output", LAYER_IDS,
    }
)  # fmt: skip
"""Keys that the speculators conversion takes from the top level."""


def check_architecture(case: InspectionCase) -> Iterator[Violation]:
    if case.draft.shape is None:
        names = case.draft.read.get("architectures") or case.draft.raw.get("architectures")
        matches = get_close_matches(case.draft.architecture, ARCHITECTURES, 1)
        yield error(
            f"architectures is {names!r}, for which vLLM has no EAGLE 3 draft",
            f"did you mean {matches[0]!r}?"
            if matches
            else "Llama-shaped: 'LlamaForCausalLMEagle3'",
        )


def check_sizes(case: InspectionCase) -> Iterator[Violation]:
    draft = case.draft
    absent_keys = [key for key in SIZES if draft.number(key) is None]
    if draft.speculators:
        absent_keys += [key for key in UNDEFAULTED if draft.read.get(key) is None]
    if absent_keys:
        yield error(
            f"config.json gives no {', '.join(absent_keys)}; vLLM takes the model type's default",
            "write the sizes the draft was trained with",
        )
    if not draft.read.get("model_type"):
        yield error("config.json gives no model_type", "Llama-shaped: 'llama'")


def list_parts(config: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    inner_config = get_mapping(config, INNER)
    nested_config = get_mapping(config, NESTED) or get_mapping(inner_config, NESTED)
    return {TOP: config, NESTED: nested_config, INNER: inner_config}


def check_misspelt_keys(case: InspectionCase) -> Iterator[Violation]:
    for place, part in list_parts(case.draft.raw).items():
        for key in part:
            matches = get_close_matches(str(key), FLAGS, 1, NEAR)
            if matches and matches[0] != key and key not in KNOWN:
                yield warning(
                    f"{key!r} at {place} of config.json is a key that vLLM does not read",
                    f"did you mean {matches[0]!r}?",
                )


KNOWN = frozenset({"norm_before_qkv", "num_hidden_states"})
"""Real keys of other models that resemble ``FLAGS``."""


def list_places_read(case: InspectionCase, key: str) -> tuple[str, ...]:
    """Return the places where vLLM looks for a key, in vLLM's order."""
    base = TOP
    if case.draft.speculators and key not in CONVERTED:
        base = INNER
    if key in NESTED_ONLY:
        return (NESTED,)
    if key == "norm_before_fc":
        return (NESTED, base)
    return (base, NESTED) if key in NESTED_TOO else (base,)


def get_effective(case: InspectionCase, key: str) -> Any:
    """Return the value that vLLM uses if it reads none for a key."""
    facts = {
        "num_aux_hidden_states": case.draft.num_aux,
        "target_hidden_size": case.draft.target_hidden_size,
        "draft_vocab_size": case.draft.draft_vocab_size,
        "max_position_embeddings": case.draft.max_positions,
    }
    return facts.get(key, case.draft.read.get(key))


def check_misplaced_keys(case: InspectionCase) -> Iterator[Violation]:
    parts = list_parts(case.draft.raw)
    for key in FLAGS:
        if key == NESTED:
            continue
        read_places = list_places_read(case, key)
        unread_places = [
            place
            for place, part in parts.items()
            if place not in read_places and part.get(key) and part[key] != get_effective(case, key)
        ]
        if unread_places and not any(parts[place].get(key) for place in read_places):
            yield warning(
                f"{key!r} is in {unread_places[0]}, where vLLM does not read it",
                f"move it to {read_places[0]} of config.json",
            )


def check_norm_output(case: InspectionCase) -> Iterator[Violation]:
    draft = case.draft
    trained_so = draft.fc_norm or any(name.startswith("fc_norm.") for name in case.tensors)
    if trained_so and not draft.norm_output and "norm_output" not in draft.raw:
        yield warning(
            "this is an EAGLE 3.1 draft (fc_norm) without 'norm_output', which vLLM takes as false",
            'add "norm_output": true at the top level, or false if it was trained so',
        )


def check_two_norms(case: InspectionCase) -> Iterator[Violation]:
    if case.draft.fc_norm and case.draft.norm_before_fc:
        yield warning(
            "'fc_norm' and 'norm_before_fc' are both on; vLLM applies both",
            "keep the one the draft was trained with",
        )


def check_mla_norm(case: InspectionCase) -> Iterator[Violation]:
    draft = case.draft
    norms_before = draft.flag("norm_before_fc") or draft.eagle_config.get("norm_before_fc")
    if draft.shape is DecoderLayer.MLA and norms_before:
        yield error(
            "'norm_before_fc' is on, which vLLM's MLA draft does not have",
            "use a draft with fc_norm instead",
        )


def check_residual_default(case: InspectionCase) -> Iterator[Violation]:
    is_converted = case.draft.raw.get(TYPE) == "eagle3"
    if is_converted and "norm_before_residual" not in case.draft.raw:
        yield warning(
            "'norm_before_residual' is absent: vLLM takes true, the speculators library false",
            "write the value it was trained with",
        )


def check_parallel_mask(case: InspectionCase) -> Iterator[Violation]:
    is_parallel = case.draft.raw.get(TYPE) == "peagle"
    if is_parallel and case.draft.raw.get("mask_token_id") is None:
        yield error("a P-EAGLE draft without 'mask_token_id'", "write the id it was trained with")
    if is_parallel and (case.draft.raw.get("fc_norm") or case.draft.raw.get("norm_output")):
        yield warning(
            "vLLM drops 'fc_norm' and 'norm_output' of P-EAGLE drafts in the speculators format",
            "store the draft as a plain config.json",
        )


def check_parallel_setting(case: InspectionCase) -> Iterator[Violation]:
    trained_so = case.draft.architecture.lower().startswith("peagle")
    if trained_so and not case.settings.get("parallel_drafting"):
        yield warning(
            "a P-EAGLE draft without parallel drafting drafts token by token, as it never trained",
            'add "parallel_drafting": true',
        )


def check_target_width(case: InspectionCase) -> Iterator[Violation]:
    return compare_widths(case, case.draft.uses_aux)


def compare_widths(case: InspectionCase, uses_aux: bool) -> Iterator[Violation]:
    """Check that one captured state, if there are any, is as wide as the target."""
    width = case.target.hidden_size if case.target else None
    draft_width = case.draft.target_hidden_size
    if uses_aux and width is not None and draft_width is not None and width != draft_width:
        yield error(
            f"the draft is made for a target of hidden size {draft_width}, this one has {width}",
            f'use the draft made for this target, or "target_hidden_size": {width} if it is it',
        )


def check_heads(case: InspectionCase) -> Iterator[Violation]:
    draft = case.draft
    if draft.shape is DecoderLayer.MLA or not draft.num_heads or not draft.num_kv_heads:
        return
    if draft.num_heads % draft.num_kv_heads:
        yield error(
            f"{draft.num_heads} attention heads over {draft.num_kv_heads} key-value heads",
            "correct num_attention_heads or num_key_value_heads",
        )
    is_strict = draft.read.get("model_type") in STRICT_HEADS or "head_dim" not in draft.read
    if is_strict and draft.hidden_size and draft.hidden_size % draft.num_heads:
        yield error(
            f"hidden size {draft.hidden_size} is not divisible by {draft.num_heads} heads",
            "correct num_attention_heads; a Qwen3-shaped draft may give head_dim instead",
        )


def check_sharding(case: InspectionCase) -> Iterator[Violation]:
    """Check that the draft divides over the target's ranks, whatever draft_tensor_parallel_size
    is."""
    size, draft = case.tensor_parallel_size, case.draft
    if size < 2:
        return
    kv = draft.num_kv_heads
    uneven_kv = draft.shape is not DecoderLayer.MLA and kv and kv % size and size % kv
    for name, count, is_uneven in (
        ("num_attention_heads", draft.num_heads, draft.num_heads and draft.num_heads % size),
        ("num_key_value_heads", kv, uneven_kv),
        ("intermediate_size", draft.number("intermediate_size"),
         (draft.number("intermediate_size") or 0) % size),
    ):  # fmt: skip
        if is_uneven:
            yield error(
                f"the draft's {name} {count} does not divide over {size} ranks",
                "use a tensor parallel size that divides it",
            )


def check_positions(case: InspectionCase) -> Iterator[Violation]:
    length, served_len = case.draft.max_positions, case.served_len
    if length is None or served_len is None or length >= served_len:
        return
    verb = "has" if case.draft.number("max_position_embeddings") else "defaults to"
    yield warning(
        f"the draft {verb} max_position_embeddings {length}, requests may have "
        f"{served_len} positions",
        f"drafting stops for the whole batch when one request passes {length}: "
        f"serve with --max-model-len {length}, or raise the value and watch acceptance",
    )


def check_rope(case: InspectionCase) -> Iterator[Violation]:
    base = get_rope_base(case.draft.read)
    theta = case.draft.read.get("rope_theta")
    if base is not None and theta is not None and base != theta:
        yield warning(
            f"rope_theta is {theta} and rope_parameters.rope_theta {base}; vLLM takes the latter",
            "set both to the value it was trained with",
        )
    target_base = get_rope_base(case.target.config) if case.target else None
    if base is not None and target_base is not None and base != target_base:
        yield note(
            f"the draft's rope_theta is {base}, the target's {target_base}",
            "right if it was trained so; most drafts take the target's",
        )


def get_rope_base(config: Mapping[str, Any]) -> Any:
    return get_mapping(config, "rope_parameters").get("rope_theta", config.get("rope_theta"))


def check_layers_exist(case: InspectionCase) -> Iterator[Violation]:
    """Check the layer ids. Id 0 is the embedding's output, id L the output of the last of L
    layers."""
    ids, layers = case.draft.captured, case.target.num_layers if case.target else None
    for layer_id in ids or ():
        if not isinstance(layer_id, int) or isinstance(layer_id, bool):
            yield error(f"{LAYER_IDS} holds {layer_id!r}", "give whole numbers")
        elif layer_id < 0 or (layers is not None and layer_id > layers):
            yield error(
                f"{LAYER_IDS} holds {layer_id}; the target's layers are 0 to {layers}",
                "use the draft made for this target, or its true ids",
            )


def check_layers_distinct(case: InspectionCase) -> Iterator[Violation]:
    ids = case.draft.layers_of(case.target)
    if ids is None or not case.draft.uses_aux or len(set(map(str, ids))) == len(ids):
        return
    if case.draft.captured is None:
        yield error(
            f"no {LAYER_IDS} given, and vLLM's default {list(ids)} repeats a layer of this target",
            f"write the three ids it was trained with to {LAYER_IDS}",
        )
    else:
        yield error(
            f"{LAYER_IDS} {list(ids)} repeats a layer; vLLM hands it out once",
            "give each layer once",
        )


def check_layers_ascending(case: InspectionCase) -> Iterator[Violation]:
    ids = [layer_id for layer_id in case.draft.captured or () if isinstance(layer_id, int)]
    if ids != sorted(ids):
        yield warning(
            f"{LAYER_IDS} {ids} are not ascending; vLLM hands the states out in layer order",
            "sort the ids if it was trained so, else permute fc's columns",
        )


def check_layers_agree(case: InspectionCase) -> Iterator[Violation]:
    top, nested_ids = case.draft.read.get(LAYER_IDS), case.draft.eagle_config.get(LAYER_IDS)
    if top and nested_ids and top != nested_ids:
        yield warning(
            f"{LAYER_IDS} is {top} at the top level and {nested_ids} in eagle_config",
            "keep the one it was trained with, in eagle_config; vLLM captures those on top",
        )


def check_layer_count(case: InspectionCase) -> Iterator[Violation]:
    """Check that the target provides as many states as fc is built for."""
    ids, num_aux = case.draft.captured, case.draft.num_aux
    if ids is None or not case.draft.uses_aux or len(ids) == num_aux:
        return
    yield error(
        f"{len(ids)} layers are captured, but vLLM builds fc for {num_aux}",
        advise_count(case, len(ids)),
    )


def advise_count(case: InspectionCase, count: int) -> str:
    if case.draft.speculators:
        return f'add "num_aux_hidden_states": {count} to transformer_layer_config'
    if case.draft.shape is DecoderLayer.QWEN3:
        return f"remove num_aux_layers and num_aux_hidden_states, or set them to {count}"
    return f'move {LAYER_IDS} into eagle_config, or add "num_aux_hidden_states": {count}'


def check_fc_width(case: InspectionCase) -> Iterator[Violation]:
    shape, width, count = (
        case.shape_of("fc.weight"),
        case.draft.target_hidden_size,
        case.draft.num_aux,
    )
    if not shape or len(shape) != 2 or width is None or case.draft.quantized:
        return
    if not case.draft.uses_aux or shape[1] == width * count:
        return
    if shape[1] % width == 0:
        advice = advise_count(case, shape[1] // width)
        problem = f"fc takes {shape[1] // width} states of {width}, vLLM builds it for {count}"
    else:
        advice = "correct target_hidden_size, or use the draft made for this target"
        problem = f"fc takes {shape[1]} inputs, which is not a multiple of hidden size {width}"
    yield error(problem, advice)


def check_aux_used(case: InspectionCase) -> Iterator[Violation]:
    if not case.draft.uses_aux and "fc.weight" in case.tensors:
        yield error(
            "use_aux_hidden_state is false and the file has fc.weight, which vLLM drops",
            "set it to true: the draft was trained on captured states",
        )


RULES: dict[str, RuleCheck] = {
    "architecture": check_architecture,
    "sizes": check_sizes,
    "key-misspelt": check_misspelt_keys,
    "key-misplaced": check_misplaced_keys,
    "norm-output": check_norm_output,
    "two-norms": check_two_norms,
    "mla-norm": check_mla_norm,
    "residual-default": check_residual_default,
    "parallel-mask": check_parallel_mask,
    "parallel-setting": check_parallel_setting,
    "target-width": check_target_width,
    "heads": check_heads,
    "sharding": check_sharding,
    "positions": check_positions,
    "rope": check_rope,
    "aux-unused": check_aux_used,
    "layers-exist": check_layers_exist,
    "layers-distinct": check_layers_distinct,
    "layers-ascending": check_layers_ascending,
    "layers-agree": check_layers_agree,
    "layers-counted": check_layer_count,
    "fc-width": check_fc_width,
}
