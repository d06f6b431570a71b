"""One machine: a process with one engine, in a prompt, token or mixed role.

`process` starts and ends it, `machine` joins the phases, the engine and the KV link, `routers` serves the
connections from routers, `observe` shows metrics and health. Run as `python -m runtime.machine`.
"""
