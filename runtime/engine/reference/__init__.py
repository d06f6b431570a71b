"""A Llama in NumPy: the embedded default engine, and the oracle that others are compared with.

Its answers are exact in one sense that matters here: the bits of a token's logits depend on the tokens
before it and on nothing else: not on who shared its batch, how its prompt was cut into chunks, whether it
was preempted, or which machine computed its KV. `tiles` and `attention` say how that is built.

In reading order: `architecture` and `huggingface`, `gguf_file` (what a model is), `weights` and `checkpoint`
(its float32 weights, prepared once per host), `tiles`, `rotary`, `attention`, `kv`, `model` (a forward
pass), `blocks`, `sequence`, `scheduler` (continuous batching over paged KV), `sampling`, `engine`.
"""
