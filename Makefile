# The commands of this project. On a fresh machine, Python 3.11 or newer and make are enough:
# each command sets up what it needs in .venv (or, for the peers of the benchmarks, in .bench, for the tests under
# emulation in .arm64, and for programs written for MLX in .clients).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BENCH := .bench
ARM64 := .arm64
CLIENTS := .clients
# Python compiles the modules that are used when they are imported first; pip would compile all of them.
PIP := -m pip install --quiet --disable-pip-version-check --no-compile
LINES_WORTH_A_LOOK := 450
# Tests run in so many processes: one per core, unless it is said how many.
WORKERS ?= auto
# Which of the digests `make test-arm` compares, and which operations `make sanitize-gpu` runs: the first of eight parts.
# 1/1 is all of them.
PART ?= 1/8

# Two environments must not be filled by two pips at once.
.NOTPARALLEL:
.PHONY: help demo docs test test-slow test-gpu sanitize-gpu test-arm test-clients lint format bench bench-peers clean

help:
	@echo 'make demo         train a classifier on handwritten digits, compare eager with compiled'
	@echo 'make docs         the documentation as a site, in build/docs/html; every example on it is run'
	@echo 'make test         the whole gate: formatting, lint, types, layers, tests'
	@echo 'make test-slow    the tests that take long'
	@echo 'make test-gpu     the tests that need an NVIDIA GPU'
	@echo 'make sanitize-gpu a sample of the operations on a GPU under compute-sanitizer, which CUDA brings'
	@echo 'make test-arm     digests and a sample of the tests on an emulated ARM64 (Linux on x86-64; needs QEMU)'
	@echo 'make test-clients mlx-lm and other programs written for MLX, run with Weft and with MLX (Linux, Apple silicon)'
	@echo 'make lint         formatting, lint, types, layers, without the tests'
	@echo 'make format       rewrite the files as the gate wants them'
	@echo 'make bench        benchmarks beside the peers that are installed; ARGS="--help" shows options'
	@echo 'make bench-peers  install the peers (MLX, JAX, PyTorch), each in an environment of its own'
	@echo 'make clean        remove the environments and caches'

demo: $(VENV)/.demo
	$(BIN)/python -m weft demo $(ARGS)

docs: $(VENV)/.docs
	$(BIN)/python -m docs.site

test: lint
	$(BIN)/python -m pytest -q -n $(WORKERS) --maxprocesses=8 --dist worksteal $(ARGS)
	@echo "Files of more than $(LINES_WORTH_A_LOOK) lines:"
	@find src tests benchmarks -name '*.py' -exec wc -l {} + \
	    | awk '$$1 > $(LINES_WORTH_A_LOOK) && $$2 != "total" { print; n++ } END { if (!n) print "  none" }'

# With code as users run it; in the gate LLVM does not optimise it.
test-slow: export WEFT_QUICK_CODE =
test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest -q -m slow $(ARGS)

test-gpu: $(VENV)/.dev
	$(BIN)/python -m pytest -q -rs -n $(WORKERS) --maxprocesses=8 tests/gpu $(ARGS)

# TOOL=racecheck looks for threads that do not wait for each other, TOOL=initcheck for memory that was not written.
TOOL ?= memcheck
sanitize-gpu: $(VENV)/.dev
	compute-sanitizer --tool $(TOOL) --error-exitcode 1 $(BIN)/python -m tests.gpu.sample --part $(PART)

# Machine code is kept from run to run: without it the emulated compiler takes most of the time.
test-arm: export WEFT_CACHE_DIR = $(CURDIR)/$(ARM64)/cache
test-arm: export WEFT_TESTS_CACHE = $(CURDIR)/$(ARM64)/cache
test-arm: $(ARM64)/.ready
	$(ARM64)/bin/python -m tests.bits --part $(PART)
	$(ARM64)/bin/python -m pytest -q -p tests.emulated $(ARGS)

test-clients: $(CLIENTS)/.ready
	$(CLIENTS)/bin/python -m pytest -q -m slow tests/clients $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
# On a very busy machine mypy's workers may not answer in time, which is its error 2.
	$(BIN)/mypy --num-workers auto || { test $$? -eq 2 && $(BIN)/mypy; }
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.demo
	$(BIN)/python -m benchmarks $(ARGS)

bench-peers: $(BENCH)/mlx/.ready $(BENCH)/jax/.ready $(BENCH)/torch/.ready

clean:
	rm -rf $(VENV) $(BENCH) $(ARM64) $(CLIENTS) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache \
	    build/docs

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Weft needs Python 3.11 or newer: make PYTHON=/path/to/python")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml | $(BIN)/python
	$(BIN)/python $(PIP) -e '.[demo]'
	@touch $@

$(VENV)/.docs: pyproject.toml | $(BIN)/python
	$(BIN)/python $(PIP) -e '.[docs]'
	@touch $@

# MLX, the oracle of some tests, has wheels for few platforms: without it those tests are skipped.
$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(BIN)/python $(PIP) -e '.[demo,dev,docs,oracle]' || { $(BIN)/python $(PIP) -e '.[demo,dev,docs]' \
	    && echo 'MLX is not available here: the tests that compare with it are skipped.'; }
	@touch $@ $(VENV)/.demo $(VENV)/.docs

$(ARM64)/.ready: pyproject.toml tools/arm64.py | $(BIN)/python
	rm -rf $(ARM64)
	$(BIN)/python tools/arm64.py $(ARM64)
	@touch $@

# Packages of others ask for MLX, and some of them for versions of other packages that are years old.
CLIENT_PACKAGES := mlx-lm==0.32.2 mlx-data==0.1.0 mlx-optimizers==0.4.1 mlx-graphs==0.0.10 mlx-stft==0.1.2 mlx-expm==0.1.1
CLIENT_DEPENDENCIES := einops==0.8.2 safetensors==0.8.0 transformers==5.23.0 tokenizers jinja2 pyyaml sentencepiece \
    protobuf fsspec requests tqdm

$(CLIENTS)/.ready: Makefile pyproject.toml
	$(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/python $(PIP) -e '.[dev]' $(CLIENT_DEPENDENCIES)
	$(CLIENTS)/bin/python $(PIP) --no-deps $(CLIENT_PACKAGES)
	$(CLIENTS)/bin/python $(PIP) -e '.[oracle]' || echo 'MLX is not available here: nothing is compared with it.'
	@touch $@

$(BENCH)/mlx/.ready: PACKAGES = 'mlx[cpu]==0.32.4'
$(BENCH)/jax/.ready: PACKAGES = 'jax==0.10.2'
$(BENCH)/torch/.ready: PACKAGES = 'torch==2.13.0' setuptools

$(BENCH)/%/.ready: Makefile
	$(PYTHON) -m venv $(BENCH)/$*
	$(BENCH)/$*/bin/python $(PIP) numpy $(PACKAGES)
	@touch $@
