"""Training of the demo checkpoint: data, tokenizer, target, EAGLE drafts, evaluation."""
