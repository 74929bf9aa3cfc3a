# Everything from a machine with Python 3.11 to 3.14 and make: each target sets up what it needs.
# PYTHON=... chooses the interpreter, VENV=... the environment, PYTEST_ARGS=... goes to pytest, FUZZ_ARGS=... to
# the fuzzer.

VENV ?= .venv
PYTHON ?=
# Each process takes files side by side, so that what a file sets up is set up once.
PYTEST_ARGS ?= --numprocesses 2 --dist worksteal
FAST := --doctest-modules src/opendas tests/unit tests/contract tests/property tests/reference -m "not slow"
FUZZ_ARGS ?= --runs 2000
BIN := $(VENV)/bin
# Bytecode is kept, whatever the shell says: else each of the many processes that tests start compiles again.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet

.DEFAULT_GOAL := help
.PHONY: help demo test test-all matrix lint spark fuzz docs bench clean

help:
	@echo "make demo    release a small synthetic state, end to end"
	@echo "make test    formatting, types, import layers, and the tests that are run while one works: minutes"
	@echo "make test-all  the same with all tests and all their seeds, as before a change lands: some twenty minutes"
	@echo "make matrix  the wheel with every Python from 3.11 to 3.14 that is here: a release made and verified"
	@echo "make lint    the same, and of the tests only that of phrases (docs/style.md)"
	@echo "make spark   install what --engine spark and its tests need (beside Java)"
	@echo "make fuzz    malformed inputs, thousands for each reader (FUZZ_ARGS=...)"
	@echo "make docs    the documentation, into site/"
	@echo "make bench   the benchmarks"
	@echo "make clean   remove the environment and what was built"

$(BIN)/python:
	@for candidate in $(PYTHON) python3.13 python3.12 python3.14 python3.11 python3 python; do \
	  if $$candidate -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null; then \
	    echo "setting up $(VENV) with $$($$candidate --version)" >&2; \
	    $$candidate -m venv $(VENV) && exit 0; \
	    rm -rf $(VENV); \
	    echo "$$candidate cannot make environments: install its venv package (Debian: apt install python3-venv)" >&2; \
	  fi; \
	done; \
	echo "no usable Python 3.11 to 3.14 found; give one with make PYTHON=/path/to/python" >&2; exit 1

# Python compiles a module when it is first imported; compiling every file of every package takes longer.
$(VENV)/.core: pyproject.toml | $(BIN)/python
	@echo "installing OpenDAS" >&2
	@$(PIP) --no-compile -e .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "installing OpenDAS with what its tests need" >&2
	@$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/.core

$(VENV)/.spark: $(VENV)/.dev
	@echo "installing Spark" >&2
	@$(PIP) -e '.[spark]'
	@touch $@

spark: $(VENV)/.spark

demo: $(VENV)/.core
	@$(BIN)/opendas demo

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/contract/test_language.py

test: lint
	$(BIN)/python -m pytest -q $(PYTEST_ARGS) $(FAST)

test-all: lint
	OPENDAS_SEEDS=$${OPENDAS_SEEDS:-all} $(BIN)/python -m pytest -q $(PYTEST_ARGS) --doctest-modules src/opendas tests

matrix:
	.ci/matrix $(MATRIX_ARGS)

$(VENV)/.fuzz: $(VENV)/.dev
	@echo "installing the fuzzer" >&2
	@$(PIP) -e '.[fuzz]'
	@touch $@

fuzz: $(VENV)/.fuzz
	cd tests && PYTHONPATH=. $(abspath $(BIN))/python -m fuzz.campaign $(FUZZ_ARGS)

docs: $(VENV)/.dev
	$(BIN)/python docs/generate_cli.py
	$(BIN)/python docs/generate_products.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/noise.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/least_squares.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/varied.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/whole_tree.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/rounding.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/allocation.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/spine_construction.py
	$(BIN)/python benchmarks/whole_runs.py scale --blocks 5000 50000
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/reading.py --blocks 100000
	$(BIN)/python benchmarks/nation.py scale --blocks 5000 50000
	$(BIN)/python benchmarks/phsafe.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/explore.py

clean:
	rm -rf $(VENV) site build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
