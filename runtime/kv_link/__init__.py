"""The KV link: a prompt's KV-cache from the prompt machine's memory into the token machine's.

`endpoint.KvLink` is what a machine uses. Below it, in reading order:

    runs, tickets, ledger     pure: what is put where, and when it is whole
    messages, hello           what the two machines say to each other (over runtime.link)
    token_side, callee, leases           the token machine: arms tickets, fences writers
    prompt_side, caller, put, sender     the prompt machine: puts layers behind the compute
    transport, transports, doors         how the bytes move: shared memory, TCP

Additions to the agreed face: `KvLink` takes `limits` and `faults` (both with defaults), `start` raises
TransportError, `counts`, `is_quarantine_full`, `open_transfers` and `turned_away` are there for metrics and
readiness. Each expected transfer ends with exactly one `drained`; each armed one with `arrived`, or with
`fenced` (see `context.KvEvents`).
"""
