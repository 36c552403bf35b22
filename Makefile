# Every target makes its own environment in .venv where there is none, or pyproject.toml has changed.
PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SLOW ?= slow
# Tests use small tensors: one thread a worker, a worker a core of a small machine. Files stay whole,
# since what a file trains once for all its tests would else be trained by both workers. None is
# started again after a crash: with whole files that waits for ever.
TEST_ARGS ?= -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

# Programs that tests start would compile the package anew, each of them, where bytecode is not kept.
TEST_ENV := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1

# As on a processor without wide registers, where libraries multiply, add and round in another order.
NARROW := ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 OPENBLAS_CORETYPE=Nehalem
NUMERICAL := $(addprefix tests/,attacks contracts/test_attack_contracts.py contracts/test_metric_contracts.py \
  contracts/test_signal_contracts.py defenses fl golden metrics observe risk signals test_typechecking.py)
# Shapes and types of every call are checked there, which takes a quarter of the tests' time. Simulated coverage is left
# out: it is about statistics in float64, which do not depend on the processor.
TYPED := --jaxtyping-packages=fedaudit,beartype.beartype

.PHONY: demo test test-slow test-numerics check lint types pages docs bench clean

demo: $(STAMP)
	$(BIN)/fedaudit demo

test: $(STAMP)
	$(TEST_ENV) $(BIN)/pytest $(TEST_ARGS) -m "not slow"

# Clusters, killed programs, pages in a browser, and how often limits hold in simulations.
test-slow: $(STAMP)
	$(TEST_ENV) $(BIN)/pytest $(TEST_ARGS) -m "$(SLOW)"

test-numerics: $(STAMP)
	$(NARROW) $(TEST_ENV) $(BIN)/pytest $(TEST_ARGS) $(TYPED) -m "not slow and not simulation" $(NUMERICAL)

check: lint types test test-slow test-numerics docs

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(STAMP)
	$(BIN)/mypy

# The pages that are made from the code, and kept beside it: commit what this writes.
pages: $(STAMP)
	$(BIN)/python docs/pages.py

docs: $(STAMP)
	$(BIN)/python docs/results.py
	$(BIN)/sphinx-build -W -q docs docs/_build
	$(BIN)/python docs/links.py docs/_build

bench: $(STAMP)
	for script in benchmarks/*.py; do $(BIN)/python $$script || exit 1; done

clean:
	rm -rf $(VENV) docs/_build docs/jupyter_execute docs/results docs/results.md docs/papers docs/papers.md build .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt $(PIP_ARGS) -e ".[dev]"
	touch $(STAMP)
