# The demo checkpoint, from seeds alone. Included by the Makefile at the root.
#
# On two free cores: data 3 min, target about 105 min, answers 4 min, drafts about 24 min each seed,
# evaluation 3 min. Killed, `make demo-model` goes on from the last state. On a GPU: RANKS=1.

# Needs the `train` extra: .venv/bin/pip install -e ".[cpu,train]"
TRAIN_PYTHON ?= $(or $(wildcard .venv/bin/python),python3)
DEMO_RUN ?= build/demo
RANKS ?= 2
STEPS_TARGET ?= 3200
STEPS_LAST ?= 4200
STEPS_CLOSE ?= 1400
STEPS_DRAFT ?= 2000
DRAFT_SEEDS ?= 1
EVAL_TARGET ?= engine/demo/target
EVAL_DRAFTS ?= --draft eagle3=engine/demo/eagle3 --draft eagle3.1=engine/demo/eagle3_1
EVAL_OUT ?= build/demo-eval
IDENTITY_LAYERS ?= 32

FURTHER_SEEDS = $(filter-out 1,$(shell seq $(DRAFT_SEEDS)))

# glibc gives freed memory back and asks for it again at every step: half the speed on a CPU.
ALLOCATOR = MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=20000000000 MALLOC_TOP_PAD_=268435456

.PHONY: demo-model demo-eval demo-install demo-cost-scaled

demo-model: $(DEMO_RUN)/MODEL_CARD.md

$(DEMO_RUN)/data/validation.npz:
	$(TRAIN_PYTHON) -m eaglegate.lab.training.corpus --out $(DEMO_RUN)/data

$(DEMO_RUN)/target/model.safetensors: $(DEMO_RUN)/data/validation.npz
	$(ALLOCATOR) OMP_NUM_THREADS=1 $(TRAIN_PYTHON) -m torch.distributed.run --nproc-per-node $(RANKS) \
	    -m eaglegate.lab.training.train_target --folder $(DEMO_RUN) --steps $(STEPS_TARGET) \
	    --last-steps $(STEPS_LAST) --close-steps $(STEPS_CLOSE)
	$(TRAIN_PYTHON) -m eaglegate.lab.training.train_target --folder $(DEMO_RUN) --export $(DEMO_RUN)/target

$(DEMO_RUN)/answers.jsonl: $(DEMO_RUN)/target/model.safetensors
	$(TRAIN_PYTHON) -m eaglegate.lab.training.answers --target $(DEMO_RUN)/target --out $@

# Both methods side by side, one thread each: same data, batches, steps and seed.
$(DEMO_RUN)/drafts: $(DEMO_RUN)/answers.jsonl
	$(ALLOCATOR) $(TRAIN_PYTHON) -m eaglegate.lab.training.demo_drafts --folder $(DEMO_RUN) \
	    --steps $(STEPS_DRAFT) --seeds $(DRAFT_SEEDS)
	touch $@

$(DEMO_RUN)/MODEL_CARD.md: $(DEMO_RUN)/drafts
	$(TRAIN_PYTHON) -m eaglegate.lab.training.evaluate --target $(DEMO_RUN)/target --out $(DEMO_RUN)/evaluation \
	    --draft eagle3=$(DEMO_RUN)/eagle3 --draft eagle3.1=$(DEMO_RUN)/eagle3_1 \
	    $(foreach seed,$(FURTHER_SEEDS),--draft eagle3-seed$(seed)=$(DEMO_RUN)/eagle3-seed$(seed) \
	    --draft eagle3.1-seed$(seed)=$(DEMO_RUN)/eagle3_1-seed$(seed))
	$(TRAIN_PYTHON) -m eaglegate.lab.training.model_card --folder $(DEMO_RUN) --out $@

# Puts a finished set where the gateway looks for it.
demo-install: $(DEMO_RUN)/MODEL_CARD.md
	mkdir -p engine/demo/target engine/demo/eagle3 engine/demo/eagle3_1
	install -m 644 $(DEMO_RUN)/target/* engine/demo/target/
	for draft in eagle3 eagle3_1; do \
	    install -m 644 $(DEMO_RUN)/$$draft/config.json $(DEMO_RUN)/$$draft/model.safetensors \
	        engine/demo/$$draft/; \
	done
	install -m 644 $(DEMO_RUN)/MODEL_CARD.md engine/demo/MODEL_CARD.md

demo-eval:
	$(TRAIN_PYTHON) -m eaglegate.lab.training.evaluate --target $(EVAL_TARGET) $(EVAL_DRAFTS) --out $(EVAL_OUT)

demo-cost-scaled:
	$(TRAIN_PYTHON) -m eaglegate.lab.training.cost_scaled --identity-layers $(IDENTITY_LAYERS) \
	    --out build/demo-cost-scaled
