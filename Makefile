# Everything one does with this repository. `make` alone lists it.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# The newest Python that is new enough; `make PYTHON=... setup` takes another.
PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
  $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$name && break; done)
VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv
UV_PIP := env -u UV_PYTHON VIRTUAL_ENV=$(CURDIR)/$(VENV) $(UV) pip
VLLM_UV := $(UV)
MADE := $(VENV)/.made
# One BLAS thread per process: more of them spin against each other.
export OPENBLAS_NUM_THREADS := 1
export OMP_NUM_THREADS := 1

.PHONY: help
help: ## List what can be made
	@grep -hE '^[a-z][a-z-]*:.*## ' $(MAKEFILE_LIST) | sort -u \
	  | awk 'BEGIN {FS = ":.*## "} {printf "  %-12s %s\n", $$1, $$2}'

# ---- the environment

.PHONY: setup
setup: $(MADE)/project ## Make .venv with everything locked (about a minute, once)
	@:

.PHONY: python
python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is missing; on Debian or Ubuntu:" \
	  "apt-get install python3 python3-venv (or python3.11 python3.11-venv)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments;" \
	  "on Debian or Ubuntu: apt-get install $$($(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')" \
	  >&2; exit 1; }

$(MADE)/bootstrap: requirements/bootstrap.txt
	@$(MAKE) --no-print-directory python
	@echo "making $(VENV)"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input --require-hashes -r $<
	@mkdir -p $(@D) && touch $@

$(MADE)/packages: $(MADE)/bootstrap requirements/dev.txt requirements/demo.txt
	@$(UV_PIP) sync --quiet --require-hashes requirements/bootstrap.txt requirements/dev.txt requirements/demo.txt
	@touch $@

$(MADE)/project: $(MADE)/packages pyproject.toml
	@$(UV_PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# ---- what one runs

.PHONY: demo
demo: setup ## Serve a real model split over local machines, and prove the answers equal unsplit ones
	@$(BIN)/splitwise demo

# A cluster, or a folder of programs, that one names spares the build of our own.
CLUSTER_PROGRAMS := $(if $(USE_EXISTING_CLUSTER)$(KUBEBUILDER_ASSETS),,tools)

.PHONY: test
test: setup $(CLUSTER_PROGRAMS) ## Run every test, those on a real API server included
	$(BIN)/pytest

.PHONY: test-fast
test-fast: setup ## Run the tests that take less than ten seconds
	$(BIN)/pytest -m "not slow"

.PHONY: faults
faults: setup ## Run the tests of every fault in docs/faults.md and print the table (ROWS="KV-1 KV-4": only these)
	$(BIN)/python tests/support/faults.py $(ROWS)

.PHONY: check
check: setup ## Check style, types, import contracts and generated files
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --cache-dir .import_linter_cache
	$(BIN)/python -m controlplane generate --check

.PHONY: generate
generate: setup ## Write the generated files anew
	$(BIN)/python -m controlplane generate

.PHONY: fmt
fmt: setup ## Put the code into shape
	$(BIN)/ruff check --fix --quiet || true
	$(BIN)/ruff format

# ---- keeping house

COMPILE = $(UV_PIP) compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
  --no-annotate --no-emit-index-url

.PHONY: lock
lock: setup ## Lock the requirements anew (UPGRADE=1 takes newer versions)
	$(COMPILE) $(if $(UPGRADE),--upgrade) requirements/bootstrap.in -o requirements/bootstrap.txt
	$(COMPILE) $(if $(UPGRADE),--upgrade) --no-deps requirements/demo.in -o requirements/demo.txt
	$(COMPILE) $(if $(UPGRADE),--upgrade) --extra operator --extra demo --extra dev pyproject.toml requirements/build.in -o requirements/dev.txt

.PHONY: clean
clean: ## Remove what was made here, .venv included
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

-include $(wildcard tools/*.mk bench/*.mk)
