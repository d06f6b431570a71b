.PHONY: bench
bench: setup ## Measure the KV link (needs root and iproute2) and the router, as ratios in one run
	$(BIN)/python -m bench.kv_visible
	$(BIN)/python -m bench.router
