"""The shape of a machine's KV-cache, and whether two of them fit together.

A pool is `layers` regions of `blocks` blocks; a block of one layer holds K and V of `block_tokens` tokens in
`block_bytes` bytes, whose inner format is the engine's affair and named by `format`. Only whole blocks
are ever copied, so two machines can exchange KV exactly if everything but the number of blocks is equal.
"""

from msgspec import Struct, structs


class Layout(Struct, frozen=True):
    """Geometry of a KV pool. `model` and `revision` name the weights; `format` names engine, inner order and
    whatever else decides what the bytes of a block mean (kernel, RoPE settings, quantisation)."""

    model: str
    revision: str
    format: str
    dtype: str
    layers: int
    kv_heads: int
    head_dim: int
    block_tokens: int
    block_bytes: int
    blocks: int

    @property
    def layer_bytes(self) -> int:
        """Bytes of one layer's region."""
        return self.blocks * self.block_bytes

    @property
    def total_bytes(self) -> int:
        """Bytes of the whole pool, layer 0 first."""
        return self.layers * self.layer_bytes

    def offset(self, layer: int, block: int) -> int:
        """Byte offset of a block of a layer in the pool."""
        return layer * self.layer_bytes + block * self.block_bytes


def differences(ours: Layout, theirs: Layout) -> list[str]:
    """One sentence per field that keeps these two from exchanging KV; empty if they fit."""
    mine, other = structs.asdict(ours), structs.asdict(theirs)
    return [
        f"{field}: {mine[field]!r} here, {other[field]!r} at the peer"
        for field in mine
        if field != "blocks" and mine[field] != other[field]
    ]
