PYTHON ?= python3
TOOLS_FOLDER := $(dir $(lastword $(MAKEFILE_LIST)))

.PHONY: tools
tools: ## Build etcd, Kubernetes and Helm for the cluster tests (about 10 minutes, once per machine)
	@$(firstword $(wildcard $(VENV)/bin/python) $(PYTHON)) $(TOOLS_FOLDER)build.py
