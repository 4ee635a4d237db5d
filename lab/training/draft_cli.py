"""eaglegate-train-draft: trains an EAGLE head for a Llama- or Qwen3-shaped target.

eaglegate-train-draft --target MODEL --data exchanges.jsonl --method eagle3.1 --out DRAFT

eaglegate-train-draft --target MODEL --init DRAFT --data CAPTURE --keep OLD_DATA --out TUNED

The second form tunes a draft further. The result can replace the draft in a running engine
(`eaglegate draft swap TUNED`). Data is JSON lines of exchanges, or a capture (file or folder).

After an interruption, the same command continues from its last state. Serve the draft with
`--speculative-config '{"method": "eagle3", "model": "DRAFT", "num_speculative_tokens": 3}'`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import AutoTokenizer

from eaglegate.engine.speculation.drafts.inspection.checkpoint import (
    NotInspectable,
    locate,
    read_config,
)
from eaglegate.engine.speculation.drafts.inspection.weights import InvalidCheckpoint
from eaglegate.lab.training.batches import Corpus
from eaglegate.lab.training.checkpoint import load_draft
from eaglegate.lab.training.draft_data import BadData, load_exchanges
from eaglegate.lab.training.draft_training import DraftData, DraftRecipe, InitialDraft, train_draft
from eaglegate.lab.training.eagle import METHODS
from eaglegate.lab.training.target import TargetModel, UnfitTarget


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "eaglegate-train-draft",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--target", type=Path, required=True, help="folder of the target model")
    parser.add_argument(
        "--data", type=Path, required=True, help="exchanges or a capture to train on"
    )
    parser.add_argument("--init", type=Path, help="folder of the draft to start from")
    parser.add_argument(
        "--keep", type=Path, action="append", help="older data to train on as well; repeatable"
    )
    parser.add_argument(
        "--keep-share", type=float, default=0.5, help="share of the batches for --keep"
    )
    parser.add_argument("--key-file", type=Path, help="Fernet keys of encrypted captures")
    parser.add_argument("--nice", type=int, default=0, help="add this to the process's niceness")
    parser.add_argument(
        "--method", choices=METHODS, help="kind of draft (default: eagle3.1, or that of --init)"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the draft")
    parser.add_argument(
        "--steps", type=int, help="training steps (default: 1000, or 200 with --init)"
    )
    parser.add_argument("--batch-tokens", type=int, default=DraftRecipe.batch_tokens)
    parser.add_argument(
        "--depths", type=int, default=DraftRecipe.depths, help="number of draft tokens to unroll"
    )
    parser.add_argument(
        "--max-tokens", type=int, default=3072, help="skip exchanges with more tokens"
    )
    parser.add_argument(
        "--draft-vocab", type=int, help="keep only this many tokens, the most frequent ones"
    )
    parser.add_argument("--seed", type=int, default=DraftRecipe.seed)
    parser.add_argument("--threads", type=int, help="number of CPU threads (default: all cores)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(argv)
    if options.init and (options.method or options.draft_vocab):
        parser.error("--init sets --method and --draft-vocab; leave them out")
    if not 0 <= options.keep_share < 1:
        parser.error(f"--keep-share must be at least 0 and below 1; given {options.keep_share}")
    try:
        options.target = locate(str(options.target))
        read_config(options.target)
    except NotInspectable as problem:
        parser.error(
            f"--target takes the folder of a model, or a model in the hub cache: {problem}"
        )
    except InvalidCheckpoint as fault:
        parser.error(f"--target: {fault.found}; {fault.advice}")
    return options


def frequent(corpus: Corpus, vocabulary: int, count: int | None) -> Tensor | None:
    """Return the `count` most frequent token ids in answers, rising; None to keep all."""
    if count is None or count >= vocabulary:
        return None
    counts = np.bincount(corpus.ids[corpus.weights > 0], minlength=vocabulary)
    return torch.from_numpy(np.sort(np.argsort(-counts, kind="stable")[:count]))


def make_recipe(options: argparse.Namespace) -> DraftRecipe:
    """Make the recipe. A draft that is tuned further uses smaller and fewer steps."""
    scale, steps = (0.2, 200) if options.init else (1.0, DraftRecipe.steps)
    return DraftRecipe(
        steps=options.steps or steps,
        batch_tokens=options.batch_tokens,
        depths=options.depths,
        matrix_lr=scale * DraftRecipe.matrix_lr,
        other_lr=scale * DraftRecipe.other_lr,
        seed=options.seed,
    )


def train(options: argparse.Namespace) -> None:
    os.nice(options.nice)
    if options.threads:
        torch.set_num_threads(options.threads)
    target = TargetModel.load(options.target, options.device)
    tokenizer = AutoTokenizer.from_pretrained(options.target)
    recent_corpus, *older = (
        load_exchanges(path, tokenizer, options.max_tokens, options.key_file)
        for path in (options.data, *(options.keep or ()))
    )
    init = open_draft(options.init, target) if options.init else None
    if init is None:
        target_ids = frequent(recent_corpus, target.config.vocab_size, options.draft_vocab)
        method = options.method or "eagle3.1"
        shape = target.draft_shape(method, options.draft_vocab if target_ids is not None else None)
    else:
        shape, target_ids = init.draft.shape, init.target_ids
    recipe = make_recipe(options)
    data = DraftData(
        recent_corpus, Corpus.join(chain(*older)) if older else None, options.keep_share
    )
    train_draft(target, shape, data, recipe, options.out, target_ids, options.device, init=init)
    print(f"saved {shape.method} draft in {options.out}")


def open_draft(path: Path, target: TargetModel) -> InitialDraft:
    """Load the initial draft. Raises BadData for a draft of an unsupported shape."""
    try:
        draft, target_ids = load_draft(path, target.draft_shape("eagle3.1"))
    except (KeyError, RuntimeError, TypeError) as problem:
        reason = (str(problem).strip().splitlines() or ["unknown layout"])[-1].strip()
        raise BadData(f"{path} is not a draft that can be tuned here: {reason}") from problem
    return InitialDraft(path, draft, target_ids)


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit status, which is 2 for invalid input."""
    try:
        train(arguments(argv))
    except (UnfitTarget, BadData, FileNotFoundError) as problem:
        print(f"eaglegate-train-draft: {problem}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
