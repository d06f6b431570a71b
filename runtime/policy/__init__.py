"""The paper's scheduling rules, pure and clockless: router, machines and planner all drive this code.

`routing` picks a prompt and a token machine (section IV-A), `batching` forms batches on one machine
(IV-B), `transfer` picks how the KV-cache travels (IV-C). Nothing here knows time, sockets or threads.
"""
