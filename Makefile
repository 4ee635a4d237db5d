# Everything a person needs every day. `make serve` and `make test` work on a machine that has
# only Python >= 3.11 and make.
PYTHON ?= python3
# uv compiles no bytecode: each process would compile what it imports where bytecode may not be kept.
export PYTHONDONTWRITEBYTECODE :=
BIN := .venv/bin
ARGS ?=

# A tested vLLM other than .venv's, for test, test-slow and test-gpu-path: its folder stands before
# .venv's. Only the tests of engines differ.
VLLM ?=
OVERLAY := $(if $(VLLM),$(CURDIR)/.vllm-$(VLLM))
ON_VLLM := $(if $(VLLM),PYTHONPATH=$(CURDIR)/src:$(OVERLAY))

# Processes of the fast tests: as many as there are cores, eight at most.
PROCESSES := -n auto --maxprocesses 8 --dist worksteal
# Two engines at a time: the tests of one file stay in one process. Files begin in the order of
# tests/conftest.py, not those of most tests first.
ENGINES := -n 2 --dist loadfile --no-loadscope-reorder --durations 30
# Of the slow tests: all, core (what any machine must pass) or rest.
SLOW ?= all

.PHONY: serve prove prove-gpu-path install install-dev install-light test test-slow test-fast test-light test-gpu-path test-versions coverage methods clients clients-newest mutants lint format docs bench lock audit dist clean

serve: install  ## serve the demo model on http://127.0.0.1:8000
	@$(BIN)/eaglegate serve $(ARGS)

prove: install  ## check the demo's engine with its draft against one without; docs/prove.md
	@$(BIN)/eaglegate prove $(ARGS)

install:  ## set up .venv from the lock; does nothing the second time
	@$(PYTHON) scripts/install.py

install-dev:
	@$(PYTHON) scripts/install.py --dev

install-light:  ## set up .venv-light: the gateway and its tests without vLLM and torch
	@$(PYTHON) scripts/install.py --light

# 5 is pytest's status for no tests, which ARGS can bring about in any of the three.
test: install-dev  ## every test: the fast ones, those with real engines, those that measure alone; VLLM=0.33: those with real engines
	@$(if $(VLLM),true,$(BIN)/python -m pytest -m "not slow and not sample" $(PROCESSES) $(ARGS)) || [ $$? -eq 5 ]
	@$(MAKE) --no-print-directory test-slow

test-slow: install-dev  ## the tests with real engines, then those that measure alone
	@$(if $(VLLM),$(PYTHON) scripts/install.py --vllm $(VLLM))
	@$(ON_VLLM) $(BIN)/python -m pytest -m "slow and not alone" --slow-set $(SLOW) $(ENGINES) $(ARGS) || [ $$? -eq 5 ]
	@$(ON_VLLM) $(BIN)/python -m pytest -m alone --slow-set $(SLOW) --durations 10 $(ARGS) || [ $$? -eq 5 ]

test-fast: install-light  ## most tests, in some minutes; they need no engine, nor vLLM or torch installed
	@.venv-light/bin/python -m pytest -m "not slow and not thorough" $(PROCESSES) $(ARGS)

test-light: install-light  ## all tests that need no engine, nor vLLM or torch installed
	@.venv-light/bin/python -m pytest -m "not slow" $(PROCESSES) $(ARGS)

# vLLM's second model runner, which it takes on every GPU, with its Triton kernels interpreted. Nearly
# all of that is Python, so an engine has one thread.
GPU_PATH := OMP_NUM_THREADS=1 TRITON_INTERPRET=1 VLLM_USE_V2_MODEL_RUNNER=1 PYTHONPATH=$(CURDIR)/tests/gpu_path:$(CURDIR)/src:$(CURDIR)/.gpu-path$(if $(VLLM),:$(OVERLAY))

test-gpu-path:  ## tests of engines on the code path of GPUs, without one
	@$(PYTHON) scripts/install.py --gpu-path
	@$(if $(VLLM),$(PYTHON) scripts/install.py --vllm $(VLLM))
	@$(GPU_PATH) $(BIN)/python -m pytest -m gpu_path $(ENGINES) $(ARGS)

# Text, seeds, accounts, exchanges of drafts, lookups and audits. `test` and `test-gpu-path` run these
# on .venv's vLLM.
CHOSEN := $(addprefix tests/engine/vllm_backend/test_, lossless.py seeds.py audits.py draft_swap.py \
    lookups.py prefix_drops.py) tests/observability/test_account_exact.py tests/e2e/test_vllm_versions.py
CHOSEN_TESTS := every_depth or plain_text or greedy_answers or seeded_answers or streams_go_on or \
    greedy_text or seeded_text or quotes_are or tokens_computed or account_exact or versions
SECOND_CHOSEN := $(addprefix tests/engine/vllm_backend/test_, lossless.py draft_swap.py second_lookups.py)
test-versions:  ## a chosen part of the tests of engines on vLLM 0.33, on both of its model runners
	@$(MAKE) --no-print-directory test-slow VLLM=0.33 ARGS='$(CHOSEN) -k "$(CHOSEN_TESTS)"'
	@$(MAKE) --no-print-directory test-gpu-path VLLM=0.33 ARGS='$(SECOND_CHOSEN) -k "$(CHOSEN_TESTS)"'

prove-gpu-path:  ## eaglegate prove on the code path of GPUs, without one
	@$(PYTHON) scripts/install.py --gpu-path
	@$(GPU_PATH) $(BIN)/eaglegate prove --quick $(ARGS)

coverage:  ## the same with their line coverage; HTML with ARGS="--cov-report html"
	@$(MAKE) --no-print-directory test-light ARGS="--cov $(ARGS)"

mutants: install-dev  ## mutation testing of the modules that guard isolation, billing and loss
	@$(BIN)/python -m tests.mutation $(ARGS)

methods: install-dev  ## every drafting method on real engines; docs/methods.md
	@$(BIN)/python -m pytest tests/engine/vllm_backend/test_methods.py tests/engine/vllm_backend/test_methods_page.py $(ARGS)

clients: install-dev  ## real clients at pinned versions against a scripted worker; docs/clients.md
	@$(BIN)/python -m tests.clients.run $(ARGS)

clients-newest: install-dev  ## the same with the newest versions; reports and never fails
	@$(BIN)/python -m tests.clients.run --newest $(ARGS)

lint: install-dev  ## ruff, strict type checking, rules of the tree and its budget of lines
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python -m scripts.tree_rules

format: install-dev
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs:  ## build the documentation site into site/; fails for a warning, a broken link or anchor
	@$(PYTHON) scripts/install.py --docs
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict
	@$(PYTHON) scripts/check_site.py site

# Those that take minutes on two cores and need nothing but this checkout; see lab/benchmarks/README.md.
BENCHES ?= wire
bench: install-dev  ## side-by-side figures; see lab/benchmarks/README.md
	@for name in $(BENCHES); do \
	    echo "== $$name"; $(BIN)/python -m eaglegate.lab.benchmarks.$$name $(ARGS) || exit 1; \
	done

lock:  ## resolve requirements/*.in anew (needs uv)
	@bash scripts/lock

compat: install-dev  ## compare what we touch of vLLM with another version: VLLM=0.33.0, or the newest
	@$(BIN)/python -m scripts.compat $(VLLM)

dist: install-light  ## the files of a release in dist/: wheel, SBOMs, checksums; docs/release.md
	@rm -rf build dist && mkdir dist
	@.venv-light/bin/python -m pip wheel -q --no-deps --no-build-isolation --wheel-dir dist .
	@.venv-light/bin/python -m scripts.sbom dist
	@cd dist && sha256sum *.whl *.json > SHA256SUMS

audit:  ## check the locks against the advisories PyPI knows; fails, too, where it cannot
	@$(PYTHON) scripts/audit.py

clean:
	rm -rf .venv .venv-light .venv-docs site .vllm-* .gpu-path .uv .drafters .drafters-build .clients .coverage htmlcov .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist

include lab/training/training.mk
