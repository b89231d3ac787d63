"""Numbers that a policy keeps for each slot, in `cache.ints`: after its `head` words, one column of N after another.

Slots are used again, so a policy clears a slot's numbers when its block is evicted. Live, a block's hash may be dropped
without an eviction: hence `is_new`, which a policy asks at release.
"""

from __future__ import annotations

from saecache_rl.compiled import kernel


@kernel(inline="always")
def column(cache, head, number):  # type: ignore[no-untyped-def]
    """(N,) the column of that number."""
    size = len(cache.blocks)
    return cache.ints[head + number * size : head + (number + 1) * size]


@kernel(inline="always")
def is_new(block, known):  # type: ignore[no-untyped-def]
    """Whether a released block was inserted by this request; `known` is what the policy keeps of it, 0: nothing."""
    return known == 0 or block.count == 1
