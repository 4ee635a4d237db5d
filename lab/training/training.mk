# The demo checkpoint, from seeds alone. Included by the Makefile at the root.
#
# On two free cores: data 3 min, target about two hours, answers 4 min, drafts about 24 min. Killed,
# `make demo-model` goes on from the last state. On a GPU: DRAFT_THREADS=.

# Needs the `train` extra: .venv/bin/pip install -e ".[cpu,train]"
TRAIN_PYTHON ?= $(or $(wildcard .venv/bin/python),python3)
DEMO_RUN ?= build/demo
STEPS_DRAFT ?= 2000
# One thread each: two trainings side by side are faster than one with two threads.
DRAFT_THREADS ?= --threads 1

# glibc gives freed memory back and asks for it again at every step: half the speed on a CPU.
ALLOCATOR = MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=20000000000 MALLOC_TOP_PAD_=268435456

.PHONY: demo-model demo-install

demo-model: $(DEMO_RUN)/drafts

$(DEMO_RUN)/data/far.npz:
	$(TRAIN_PYTHON) -m eaglegate.lab.training.corpus --out $(DEMO_RUN)/data

$(DEMO_RUN)/target/model.safetensors: $(DEMO_RUN)/data/far.npz
	$(ALLOCATOR) $(TRAIN_PYTHON) -m eaglegate.lab.training.train_target --folder $(DEMO_RUN)

$(DEMO_RUN)/answers.jsonl: $(DEMO_RUN)/target/model.safetensors
	$(TRAIN_PYTHON) -m eaglegate.lab.training.answers --target $(DEMO_RUN)/target --out $@

TRAIN_DRAFT = $(ALLOCATOR) OMP_NUM_THREADS=1 $(TRAIN_PYTHON) -m eaglegate.lab.training.draft_cli \
    --target $(DEMO_RUN)/target --data $(DEMO_RUN)/answers.jsonl --steps $(STEPS_DRAFT) $(DRAFT_THREADS)

# Both methods side by side: same data, batches, steps and seed.
$(DEMO_RUN)/drafts: $(DEMO_RUN)/answers.jsonl
	$(TRAIN_DRAFT) --method eagle3 --out $(DEMO_RUN)/eagle3 & first=$$!; \
	$(TRAIN_DRAFT) --method eagle3.1 --out $(DEMO_RUN)/eagle3_1; \
	status=$$?; wait $$first && exit $$status
	touch $@

# Puts a finished set where the gateway looks for it.
demo-install: $(DEMO_RUN)/drafts
	mkdir -p engine/demo/target engine/demo/eagle3 engine/demo/eagle3_1
	install -m 644 $(DEMO_RUN)/target/* engine/demo/target/
	for draft in eagle3 eagle3_1; do \
	    install -m 644 $(DEMO_RUN)/$$draft/config.json $(DEMO_RUN)/$$draft/model.safetensors \
	        engine/demo/$$draft/; \
	done
