"""Tokens to blocks, compiled: what is in each full block, and the type of most of its tokens."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import types

from saecache_rl.compiled import compiled
from saecache_rl.vocabulary import NUM_TOKEN_TYPES

_LONG, _BYTES = types.int64[::1], types.uint8[::1]


@compiled(types.uint64(types.uint64), inline="always")
def mix(value):  # type: ignore[no-untyped-def]
    """SplitMix64's finaliser (Steele, Lea and Flood 2014)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@compiled(types.void(_LONG, _BYTES, types.int64, _LONG, _BYTES, _LONG))
def _blocks(tokens, kinds, block_size, raw, token_type, counts):  # type: ignore[no-untyped-def]
    for block in range(len(raw)):
        mixed = np.uint64(0)
        counts[:] = 0
        best = kinds[block * block_size]
        for at in range(block * block_size, (block + 1) * block_size):
            mixed = mix(mixed + np.uint64(tokens[at]) + np.uint64(0x9E3779B97F4A7C15))
            counts[kinds[at]] += 1
        for at in range(block * block_size, (block + 1) * block_size):
            if counts[kinds[at]] > counts[best]:  # in order of appearance, so that the earlier wins a tie
                best = kinds[at]
        raw[block] = np.int64(mixed >> np.uint64(1))
        token_type[block] = best


def blocks_of(
    tokens: npt.NDArray[np.int64], kinds: npt.NDArray[np.uint8], block_size: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return raw ids and types of the full blocks of (N,) tokens of (N,) types, N // block_size of each.

    Raw ids are not negative and equal where the block's tokens are (up to collisions in 63 bits).
    """
    full = len(tokens) // block_size
    raw, token_type = np.empty(full, np.int64), np.empty(full, np.uint8)
    tokens, kinds = np.ascontiguousarray(tokens, np.int64), np.ascontiguousarray(kinds, np.uint8)
    _blocks(tokens, kinds, block_size, raw, token_type, np.zeros(NUM_TOKEN_TYPES, np.int64))
    return raw, token_type
