"""The data plane: everything that touches a request.

In reading order, from the bottom up: `policy` (who does what, pure and clockless), `link` (authenticated
message connections), `wire` (what router and machines say to each other), `kv_link` (KV blocks between
machines), `engine` (what computes tokens), `prompt_server` and `token_server` (one phase each), `machine`
(the process that holds them) and `router` (the OpenAI-compatible front).
"""

__version__ = "0.1.0"
