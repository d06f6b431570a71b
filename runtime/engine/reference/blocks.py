"""The free list of a KV pool. Who holds a block is written in the sequence that holds it."""


class Blocks:
    """Blocks 0 to `total` - 1; lowest ids first, so that fresh tables are contiguous runs."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(range(total - 1, -1, -1))

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """The caller has checked that so many are free."""
        if count > len(self._free):
            raise AssertionError(f"{count} blocks asked for, {len(self._free)} are free")
        return [self._free.pop() for _ in range(count)]

    def give(self, blocks: list[int]) -> None:
        """Back to the free list; `blocks` is emptied, so nothing can be given back twice."""
        self._free.extend(reversed(blocks))
        blocks.clear()


def needed(tokens: int, block_tokens: int) -> int:
    """Blocks for the KV of so many tokens."""
    return -(-tokens // block_tokens)
