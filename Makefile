# Each target creates the environment .venv if it does not exist, or if pyproject.toml has changed.
PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SLOW ?= slow
SLOW_TESTS ?= tests
# Tests use small tensors, so each worker has one thread and one core of a small machine. All tests
# of a file run in the same worker, because they share trained models. Workers are not restarted
# after a crash: with --dist loadfile, pytest-xdist would wait forever.
TEST_ARGS ?= -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

# Without bytecode files, every program that a test starts would compile the package again.
TEST_ENV := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1

# Instruction sets without wide registers, with which libraries add and round in another order.
NARROW := ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 OPENBLAS_CORETYPE=Nehalem
NUMERICAL := $(addprefix tests/,attacks contracts/test_attack_contracts.py contracts/test_metric_contracts.py \
  contracts/test_signal_contracts.py defenses fl golden metrics observe risk signals test_typechecking.py)
# Checks shapes and types of every call, which takes a quarter of the time of these tests. Simulations of coverage are
# left out, because they compute statistics in float64, which do not depend on the processor.
TYPED := --jaxtyping-packages=fedaudit,beartype.beartype

.PHONY: demo test test-slow test-numerics check lint types pages docs bench clean

demo: $(STAMP)
	$(BIN)/fedaudit demo

test: $(STAMP)
	$(TEST_ENV) $(BIN)/pytest $(TEST_ARGS) -m "not slow"

# Tests with clusters, killed programs or a browser, and simulations of the coverage of limits.
test-slow: $(STAMP)
	$(TEST_ENV) $(BIN)/pytest $(TEST_ARGS) -m "$(SLOW)" $(SLOW_TESTS)

test-numerics: $(STAMP)
	$(NARROW) $(TEST_ENV) $(BIN)/pytest $(TEST_ARGS) $(TYPED) -m "not slow and not simulation" $(NUMERICAL)

check: lint types test test-slow test-numerics docs

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(STAMP)
	$(BIN)/mypy

# Writes the committed pages that are generated from the code; commit the changes.
pages: $(STAMP)
	$(BIN)/python docs/pages.py

docs: $(STAMP)
	$(BIN)/python docs/results.py
	$(BIN)/sphinx-build -W -q docs docs/_build
	$(BIN)/python docs/links.py docs/_build

# `benchmarks.gpu` and `benchmarks.sampling` need arguments; see benchmarks/README.md.
BENCHMARKS := $(filter-out __init__ gpu sampling,$(basename $(notdir $(wildcard benchmarks/*.py))))

bench: $(STAMP)
	for name in $(BENCHMARKS); do $(BIN)/python -m benchmarks.$$name || exit 1; done

clean:
	rm -rf $(VENV) docs/_build docs/jupyter_execute docs/results docs/results.md docs/papers docs/papers.md build .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt $(PIP_ARGS) -e ".[dev]"
	touch $(STAMP)
