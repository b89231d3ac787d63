"""Raw block ids of requests to chained identities: dense, in order of appearance, equal exactly when the prefixes are.

A raw id says only what is inside a block. The identity of a block is (identity of the block before it, raw id), and for
a chain's first block (root, raw id), where requests of different roots (salts) share nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import types

from saecache_rl.compiled import compiled

_INT = types.int32[::1]
_LONG = types.int64[::1]


class Chains(NamedTuple):
    """What `chain_blocks` found.

    blocks: (N,) int32, the identity of each reference.
    parent: (U,) int32, the identity before it, -1 at a chain's start.
    offset: (U,) int32, index in the chain.
    first: (U,) int64, the reference at which the identity appeared first.
    """

    blocks: npt.NDArray[np.int32]
    parent: npt.NDArray[np.int32]
    offset: npt.NDArray[np.int32]
    first: npt.NDArray[np.int64]


@compiled(types.uint64(types.int64, types.int64), inline="always")
def _hash(key, raw):  # type: ignore[no-untyped-def]
    # The finaliser of SplitMix64 (Steele, Lea and Flood 2014) over both parts of the key.
    mixed = np.uint64(raw) + np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@compiled(types.int64(_LONG, _INT, _LONG, _INT, types.int64))
def _enter(raw, key_of, first, table, found):  # type: ignore[no-untyped-def]
    """Fill an empty table (of a power of two) with the identities found so far."""
    mask = np.uint64(len(table) - 1)
    for identity in range(found):
        slot = _hash(key_of[identity], raw[first[identity]]) & mask
        while table[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        table[slot] = identity
    return found


@compiled(
    types.Tuple((types.int64, types.int64))(_LONG, _LONG, _INT, _INT, _INT, _LONG, _INT, _INT, types.int64, types.int64)
)
def _chain(raw, starts, roots, blocks, key_of, first, offset, table, request, found):  # type: ignore[no-untyped-def]
    """Chain whole requests from `request` on, while there is room; return the next request and the identities found."""
    mask = np.uint64(len(table) - 1)
    room = len(key_of)
    for r in range(request, len(starts) - 1):
        if starts[r + 1] - starts[r] > room - found:
            return r, found
        key = -1 - np.int64(roots[r])
        for i in range(starts[r], starts[r + 1]):
            # Identities are numbered in order of appearance, so along a chain the next one is mostly its parent's + 1.
            identity = key + 1 if key >= 0 else found
            if identity >= found or key_of[identity] != key or raw[first[identity]] != raw[i]:
                slot = _hash(key, raw[i]) & mask
                identity = np.int64(table[slot])
                while identity >= 0 and (key_of[identity] != key or raw[first[identity]] != raw[i]):
                    slot = (slot + np.uint64(1)) & mask
                    identity = np.int64(table[slot])
                if identity < 0:
                    identity = found
                    table[slot] = found
                    key_of[found] = key
                    first[found] = i
                    offset[found] = i - starts[r]
                    found += 1
            blocks[i] = identity
            key = identity
    return len(starts) - 1, found


def _longer(array: npt.NDArray[Any], length: int) -> npt.NDArray[Any]:
    grown = np.empty(length, array.dtype)
    grown[: len(array)] = array
    return grown


def chain_blocks(raw_ids: npt.NDArray[np.int64], starts: npt.NDArray[np.int64], roots: npt.NDArray[np.int32]) -> Chains:
    """Chain the blocks of R requests.

    Args:
        raw_ids: (N,) of each request its prompt's full blocks and then those that its reply completes: the first
            generated block follows the prompt's last full one, as the next turn's prompt will have it.
        starts: (R + 1,) request r has `raw_ids[starts[r]:starts[r + 1]]`.
        roots: (R,) not negative; chains of different roots share nothing.

    Returns:
        Dense identities in order of appearance (N references, U identities).
    """
    raw = np.ascontiguousarray(raw_ids, np.int64)
    starts = np.ascontiguousarray(starts, np.int64)
    roots = np.ascontiguousarray(roots, np.int32)
    longest = int(np.diff(starts).max(initial=0))
    blocks = np.empty(len(raw), np.int32)
    # Key of an identity: its parent, or -1 - root at a chain's start.
    key_of, first, offset = np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int32)
    request = found = 0
    while request < len(starts) - 1:
        room = max(4 * len(key_of), found + longest, 1 << 16)
        key_of, first, offset = _longer(key_of, room), _longer(first, room), _longer(offset, room)
        table = np.full(1 << (2 * room - 1).bit_length(), -1, np.int32)
        _enter(raw, key_of, first, table, found)
        request, found = _chain(raw, starts, roots, blocks, key_of, first, offset, table, request, found)
    return Chains(blocks, np.maximum(key_of[:found], -1), offset[:found].copy(), first[:found].copy())
