# Everything a person needs every day. `make serve` and `make test` work on a machine that has
# only Python >= 3.11 and make.
PYTHON ?= python3
BIN := .venv/bin
ARGS ?=

.PHONY: serve install install-dev test test-fast clients clients-newest mutants lint format bench lock audit clean

serve: install  ## serve the demo model on http://127.0.0.1:8000
	@$(BIN)/eaglegate serve $(ARGS)

install:  ## set up .venv from the lock; does nothing the second time
	@$(PYTHON) scripts/install.py

install-dev:
	@$(PYTHON) scripts/install.py --dev

# The fast tests side by side, with their coverage; then those with a real engine, one at a time.
# 5 is pytest's status for no tests, which ARGS can bring about in one of the two.
test: install-dev  ## every test, those on the real engine too
	@$(BIN)/python -m pytest -m "not slow" -n 2 --cov $(ARGS) || [ $$? -eq 5 ]
	@$(BIN)/python -m pytest -m slow --durations=30 $(ARGS) || [ $$? -eq 5 ]

test-fast: install-dev  ## the tests that need no engine
	@$(BIN)/python -m pytest -m "not slow" $(ARGS)

mutants: install-dev  ## mutation testing of the modules that guard isolation, billing and loss
	@$(BIN)/python -m tests.mutation $(ARGS)

clients: install-dev  ## real clients at pinned versions against a scripted worker; docs/clients.md
	@$(BIN)/python -m tests.clients.run $(ARGS)

clients-newest: install-dev  ## the same with the newest versions; reports and never fails
	@$(BIN)/python -m tests.clients.run --newest $(ARGS)

lint: install-dev  ## ruff and strict type checking
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: install-dev
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# Those that take minutes on two cores and need nothing but this checkout; see benchmarks/README.md.
BENCHES ?= parsers observing depth wire accounting
bench: install-dev  ## side-by-side figures; see benchmarks/README.md
	@for name in $(BENCHES); do \
	    echo "== $$name"; $(BIN)/python -m benchmarks.$$name $(ARGS) || exit 1; \
	done

lock:  ## resolve requirements/*.in anew (needs uv)
	@bash scripts/lock

audit:  ## check the locks against the advisories PyPI knows; says so where it cannot
	@$(PYTHON) scripts/audit.py

clean:
	rm -rf .venv .clients .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist

include training/training.mk
