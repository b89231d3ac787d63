"""Raw block ids of requests to chained identities: dense, in order of appearance, equal exactly when the prefixes are.

A raw id says only what is inside a block. The identity of a block is (identity of the block before it, raw id), and for
a chain's first block (root, raw id), where requests of different roots (salts) share nothing.
"""

from __future__ import annotations

from typing import NamedTuple

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


@compiled(types.Tuple((_INT, _INT, _INT, _LONG))(_LONG, _LONG, _INT))
def _chain(raw, starts, roots):  # type: ignore[no-untyped-def]
    blocks = np.empty(len(raw), np.int32)
    room = 1024
    key_of = np.empty(room, np.int32)  # the parent; -1 - root at a chain's start
    first = np.empty(room, np.int64)
    offset = np.empty(room, np.int32)
    table = np.full(2 * room, -1, np.int32)
    mask = np.uint64(2 * room - 1)
    found = 0
    for r in range(len(starts) - 1):
        key = -1 - roots[r]
        for i in range(starts[r], starts[r + 1]):
            # Identities are numbered in order of appearance, so along a chain the next one is mostly its parent's + 1.
            identity = key + 1 if key >= 0 else found
            if identity >= found or key_of[identity] != key or raw[first[identity]] != raw[i]:
                slot = _hash(key, raw[i]) & mask
                while True:
                    identity = table[slot]
                    if identity < 0 or (key_of[identity] == key and raw[first[identity]] == raw[i]):
                        break
                    slot = (slot + np.uint64(1)) & mask
                if identity < 0:
                    if found == room:
                        room *= 2
                        key_of = np.concatenate((key_of, np.empty(found, np.int32)))
                        first = np.concatenate((first, np.empty(found, np.int64)))
                        offset = np.concatenate((offset, np.empty(found, np.int32)))
                        table = np.full(2 * room, -1, np.int32)
                        mask = np.uint64(2 * room - 1)
                        for old in range(found):
                            slot = _hash(key_of[old], raw[first[old]]) & mask
                            while table[slot] >= 0:
                                slot = (slot + np.uint64(1)) & mask
                            table[slot] = old
                        slot = _hash(key, raw[i]) & mask
                        while table[slot] >= 0:
                            slot = (slot + np.uint64(1)) & mask
                    identity = found
                    table[slot] = found
                    key_of[found] = key
                    first[found] = i
                    offset[found] = i - starts[r]
                    found += 1
            blocks[i] = identity
            key = identity
    parent = np.empty(found, np.int32)
    for identity in range(found):
        parent[identity] = max(key_of[identity], -1)
    return blocks, parent, offset[:found].copy(), first[:found].copy()


def chain_blocks(
    raw_ids: npt.NDArray[np.int64], starts: npt.NDArray[np.int64], roots: npt.NDArray[np.int32]
) -> Chains:
    """Chain the blocks of R requests.

    Args:
        raw_ids: (N,) of each request its prompt's full blocks and then those that its reply completes: the first
            generated block follows the prompt's last full one, as the next turn's prompt will have it.
        starts: (R + 1,) request r has `raw_ids[starts[r]:starts[r + 1]]`.
        roots: (R,) not negative; chains of different roots share nothing.

    Returns:
        Dense identities in order of appearance (N references, U identities).
    """
    return Chains(
        *_chain(
            np.ascontiguousarray(raw_ids, np.int64),
            np.ascontiguousarray(starts, np.int64),
            np.ascontiguousarray(roots, np.int32),
        )
    )


