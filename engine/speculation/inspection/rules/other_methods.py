"""Rules about drafts that are not EAGLE 3: what follows from two config.json files alone."""

from __future__ import annotations

from collections.abc import Iterator

from engine.speculation.inspection.case import InspectionCase, InspectionRule, Verdict, error, note
from engine.speculation.inspection.target import get_int, read_target

JOINED_BY_FC = (["LlamaForCausalLM"], ["EagleLlamaForCausalLM"])
SHARES_WIDTH = frozenset({"eagle", "medusa"})
LAYER_COUNTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")


def check_same_vocabulary(case: InspectionCase) -> Iterator[Verdict]:
    if case.checkpoint is None or case.target is None:
        return
    if case.method not in ("draft_model", "eagle") or case.settings.get("use_heterogeneous_vocab"):
        return
    own, target = read_target(case.draft.raw).vocab_size, case.target.vocab_size
    if own is not None and target is not None and own != target:
        yield error(
            f"the draft's vocab_size is {own}, the target's {target}",
            'use a draft with the target\'s tokenizer, or "use_heterogeneous_vocab": true'
            if case.method == "draft_model"
            else "use the draft made for this target",
        )


def check_same_width(case: InspectionCase) -> Iterator[Verdict]:
    if case.method not in SHARES_WIDTH or case.checkpoint is None or case.target is None:
        return
    own, target = case.draft.hidden_size, case.target.hidden_size
    if own is not None and target is not None and own != target:
        yield error(
            f"the draft's hidden size is {own}, the target's {target}",
            "use the draft made for this target",
        )


def check_eagle_fc(case: InspectionCase) -> Iterator[Verdict]:
    shape, hidden = case.shape_of("fc.weight"), case.draft.hidden_size
    if case.method != "eagle" or not case.tensors or hidden is None:
        return
    if case.draft.read.get("architectures") not in JOINED_BY_FC:
        return
    if shape is None:
        yield error("an EAGLE draft without fc.weight", "export the draft again, complete")
    elif shape != (hidden, 2 * hidden):
        yield error(
            f"fc.weight is {list(shape)}, an EAGLE draft's is {[hidden, 2 * hidden]}",
            "correct hidden_size, or use the method the draft is made for",
        )


def check_mtp_layers(case: InspectionCase) -> Iterator[Verdict]:
    """MTP layers come inside the target, as many as config.json says."""
    if case.method != "mtp" or case.target is None or case.settings.get("model"):
        return
    counts = [get_int(case.target.config, key) for key in LAYER_COUNTS]
    ahead = next((count for count in counts if count is not None), None)
    depth = get_int(case.settings, "num_speculative_tokens")
    if ahead is None:
        yield note("the target's config.json counts no MTP layers", "some models do not say so")
    elif ahead < 1:
        yield error("the target has no MTP layers", "use another method")
    elif ahead and depth and depth > ahead and depth % ahead:
        yield error(
            f"num_speculative_tokens is {depth} with {ahead} MTP layers",
            f"give a multiple of {ahead}",
        )


def check_dflash_layers(case: InspectionCase) -> Iterator[Verdict]:
    """DFlash counts target layers from 0 and hears layer outputs."""
    inner = case.draft.raw.get("dflash_config")
    ids = inner.get("target_layer_ids") if isinstance(inner, dict) else None
    layers = case.target.num_layers if case.target else None
    if case.method != "dflash" or not isinstance(ids, list) or layers is None:
        return
    wrong = [one for one in ids if not isinstance(one, int) or not 0 <= one < layers]
    if wrong:
        yield error(
            f"target_layer_ids holds {wrong[0]}; the target has layers 0 to {layers - 1}",
            "use the draft made for this target",
        )


RULES = (
    InspectionRule("same-vocabulary", "draft and target share a vocabulary", check_same_vocabulary),
    InspectionRule("same-width", "draft and target share a hidden size", check_same_width),
    InspectionRule("eagle-fc", "an EAGLE draft joins embedding and state", check_eagle_fc),
    InspectionRule("mtp-layers", "K fits the target's MTP layers", check_mtp_layers),
    InspectionRule("block-layers", "DFlash listens to layers there are", check_dflash_layers),
)
