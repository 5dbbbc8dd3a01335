# Each environment is made once and again when pyproject.toml changes; a second `make` of anything starts at once.
PYTHON ?= python3
HOST ?= $(or $(SHARDPLAN_HOST),127.0.0.1)
PORT ?= $(or $(SHARDPLAN_PORT),8000)
VENV := .venv
VERIFY := .venv-verify
BIN := $(VENV)/bin
PIP := -m pip install --quiet --disable-pip-version-check --no-input
PLAIN := --override-ini "addopts=--strict-markers -q"

# How many workers share `make test`: one a core, four at most, each with its own PostgreSQL. A few chosen tests (ARGS) are
# sooner done by one process.
WORKERS ?= $(if $(ARGS),0,logical)
SHARED := -n $(WORKERS) --maxprocesses 4 --dist loadgroup

# Many tests start the command or the service: its modules are compiled once, not by each process.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test lint format types verify browser bench fuzz audit fit messages clean

run: $(VENV)/.run $(if $(filter-out false 0,$(SHARDPLAN_FETCH_MODELS)),$(VENV)/.hub)
	SHARDPLAN_HOST=$(HOST) SHARDPLAN_PORT=$(PORT) $(BIN)/python -m app.main

test: $(VENV)/.dev
	$(BIN)/python -m pytest $(SHARED) $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/bandit --quiet --recursive app migrations

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.dev
	$(BIN)/mypy

# The emitted files on the real libraries, on CPU ranks. DeepSpeed's CPU kernels are built once, into .cache; what was shown
# goes to docs/verified.md, whether or not all of it passed.
verify: export DS_ACCELERATOR := cpu
verify: export OMP_NUM_THREADS := 1
verify: export HF_HUB_OFFLINE := 1
verify: export TORCH_EXTENSIONS_DIR := $(CURDIR)/.cache/torch_extensions
verify: export PATH := $(CURDIR)/$(VERIFY)/bin:$(PATH)
verify: $(VERIFY)/.oldest
	$(VERIFY)/bin/python -m tests.verify.kernels
	$(VERIFY)/bin/python -m pytest tests/verify $(PLAIN) -m verify $(ARGS); \
	status=$$?; $(VERIFY)/bin/python -m tests.verify.report; exit $$status

browser: $(VENV)/.browser
	$(BIN)/python -m pytest tests/browser $(PLAIN) -m browser $(ARGS)

bench: $(VENV)/.dev
	$(BIN)/python -m bench $(ARGS)

# Generated requests by the thousand; `make test` sends a few hundred of them.
fuzz: export SHARDPLAN_FUZZ_CASES := 1700
fuzz: $(VENV)/.dev
	$(BIN)/python -m pytest tests/contract/test_generated.py $(PLAIN) $(ARGS)

# Known vulnerabilities of what is installed; asks a public database, so it is not a part of `make lint`.
audit: $(VENV)/.dev
	$(BIN)/python $(PIP) pip-audit
	$(BIN)/pip-audit --skip-editable

fit: $(VENV)/.dev
	$(BIN)/python -m bench.fit $(ARGS)

# What the pages say, into locale/*/LC_MESSAGES/messages.po; lists what waits for its translation.
messages: $(VENV)/.dev
	$(BIN)/python -m bench.messages

clean:
	rm -rf $(VENV) $(VERIFY) .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache build dist

$(VENV)/bin/python $(VERIFY)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Shardplan needs Python 3.11 or newer: make PYTHON=python3.11 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv $(@D)/..

$(VENV)/.run: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python $(PIP) --editable .
	@touch $@

$(VENV)/.hub: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python $(PIP) --editable '.[hub]'
	@touch $@ $(VENV)/.run

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python $(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.run

$(VENV)/.browser: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python $(PIP) --editable '.[dev,browser]'
	@touch $@ $(VENV)/.dev $(VENV)/.run

# torch first and alone: the extra pins it too, but then nothing that needs torch can bring another build of it.
$(VERIFY)/.verify: pyproject.toml | $(VERIFY)/bin/python
	$(VERIFY)/bin/python $(PIP) torch==2.13.0
	$(VERIFY)/bin/python $(PIP) --editable '.[dev,verify]'
	@touch $@

# The oldest DeepSpeed that files are written for, beside the newest: only the runs that need it have it on their path.
$(VERIFY)/.oldest: app/catalog/keys.json $(VERIFY)/.verify
	release=$$($(VERIFY)/bin/python -c 'from app.catalog.keys import oldest; print(oldest("deepspeed"))'); \
	DS_BUILD_OPS=0 $(VERIFY)/bin/python $(PIP) --no-deps --no-build-isolation --upgrade --target .cache/deepspeed-$$release deepspeed==$$release
	@touch $@
