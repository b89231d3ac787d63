"""Identities of a live cache: numbers that are used again, found by the fingerprint of a block's hash.

A node exists while its block is resident, or while it has resident children (a hole, which only a dropped hash
leaves). So twice as many nodes as slots suffice. A hash table (linear probing, removal by moving followers back) leads
from a fingerprint, 63 bits of vLLM's block hash, to its node.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import types

from saecache_rl.cache.layout import CACHE, INT
from saecache_rl.compiled import kernel
from saecache_rl.handles import array_at

Fingerprints = npt.NDArray[np.int64]
#: Parent of a number that is no node at present.
UNUSED = -2


class Nodes(NamedTuple):
    """Tables of the node numbers."""

    table: Any  # int32, a power of two: nodes by fingerprint, -1: empty
    free: Any  # int32, a stack of unused nodes
    count: Any  # (1,) int64, how many are on it
    of_slot: Any  # (N,) int32, the node that a slot last held


NODES = types.NamedTuple((types.int32[::1], types.int32[::1], types.int64[::1], types.int32[::1]), Nodes)
NODES_WORDS = 2 * len(Nodes._fields)
_ints, _longs = array_at(types.int32[::1]), array_at(types.int64[::1])


def make_nodes(num_blocks: int) -> tuple[Nodes, int]:
    """Tables for `num_blocks` slots, and the number of nodes."""
    count = 2 * num_blocks + 2
    return (
        Nodes(
            table=np.full(1 << (2 * count - 1).bit_length(), -1, np.int32),
            free=np.arange(count - 1, -1, -1, dtype=np.int32),
            count=np.array([count], np.int64),
            of_slot=np.full(num_blocks, -1, np.int32),
        ),
        count,
    )


def fingerprints_of(hashes: list[bytes]) -> Fingerprints:
    """(n,) the first 63 bits of each hash; the hashes are of one length, a multiple of 8 bytes."""
    if not hashes:
        return np.empty(0, np.int64)
    words = np.frombuffer(b"".join(hashes), np.int64)
    return words[:: len(words) // len(hashes)] & np.int64(0x7FFFFFFFFFFFFFFF)


@kernel(NODES(types.int64[::1]), forceinline=True)
def nodes_at(handle):  # type: ignore[no-untyped-def]
    """The tables that the first words of a handle name."""
    h = handle
    return Nodes(_ints(h[0], h[1]), _ints(h[2], h[3]), _longs(h[4], h[5]), _ints(h[6], h[7]))


@kernel(inline="always")
def _home(fingerprint, mask):  # type: ignore[no-untyped-def]
    """Where a fingerprint belongs; its bits are a cryptographic hash's already."""
    return fingerprint & mask


@kernel(INT(CACHE, NODES, INT))
def find_node(cache, nodes, fingerprint):  # type: ignore[no-untyped-def]
    """The node with this fingerprint, -1 if there is none."""
    mask = len(nodes.table) - 1
    place = _home(fingerprint, mask)
    while nodes.table[place] >= 0:
        if cache.fingerprint[nodes.table[place]] == fingerprint:
            return np.int64(nodes.table[place])
        place = (place + 1) & mask
    return np.int64(-1)


@kernel(INT(CACHE, NODES, INT))
def add_node(cache, nodes, fingerprint):  # type: ignore[no-untyped-def]
    """Make a node for a fingerprint that has none."""
    nodes.count[0] -= 1
    node = nodes.free[nodes.count[0]]
    cache.fingerprint[node] = fingerprint
    cache.parent[node] = -1
    cache.first[node] = -1
    cache.children[node] = 0
    mask = len(nodes.table) - 1
    place = _home(fingerprint, mask)
    while nodes.table[place] >= 0:
        place = (place + 1) & mask
    nodes.table[place] = node
    return np.int64(node)


@kernel(types.void(CACHE, NODES, INT))
def _drop_node(cache, nodes, node):  # type: ignore[no-untyped-def]
    mask = len(nodes.table) - 1
    place = _home(cache.fingerprint[node], mask)
    while nodes.table[place] != node:
        place = (place + 1) & mask
    hole = place
    nodes.table[hole] = -1
    place = (place + 1) & mask
    while nodes.table[place] >= 0:
        home = _home(cache.fingerprint[nodes.table[place]], mask)
        # A follower may fill the hole unless its home lies after the hole on the way to it.
        if ((place - home) & mask) >= ((place - hole) & mask):
            nodes.table[hole] = nodes.table[place]
            nodes.table[place] = -1
            hole = place
        place = (place + 1) & mask
    nodes.free[nodes.count[0]] = node
    nodes.count[0] += 1
    cache.parent[node] = UNUSED


@kernel(types.void(CACHE, NODES, INT))
def tidy_node(cache, nodes, node):  # type: ignore[no-untyped-def]
    """After a slot of this node was emptied: give back the node, and those above it, that nothing needs any more."""
    while node >= 0 and cache.parent[node] != UNUSED and cache.first[node] < 0:
        parent = np.int64(cache.parent[node])
        # A node that is not resident counts for no parent, whose own number may be used again.
        cache.parent[node] = -1
        if cache.children[node] == 0:
            _drop_node(cache, nodes, node)
        node = parent
