"""The arrays of a cache, as compiled code sees them: one record a slot, one a ghost, one for the pool's own counters.

A slot is a physical block (vLLM's block id, less the reserved one). An identity is a small integer: in the simulator
the trace's dense id, in a live engine the number of a node that is used again once its block is gone. `Cache` joins
all arrays; every compiled function of the pool and of a policy takes it as its first argument.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from numba import types

from saecache_rl.compiled import kernel
from saecache_rl.handles import array_at

#: One slot, 56 bytes.
BLOCK = np.dtype(
    [
        ("key", "f8"),  # order within the slot's class, lowest evicted first; set by the policy at release
        ("time", "f8"),  # seconds of the last access
        ("access", "i8"),  # number of the last access, strictly increasing
        ("identity", "i4"),  # -1: the slot holds no hashed block
        ("next_copy", "i4"),  # the next younger slot with the same identity, -1: none
        ("refs", "i4"),  # running requests that hold it
        ("position", "i4"),  # place in its class's heap of candidates, -1: no candidate
        ("offset", "i4"),  # index in its chain
        ("count", "i4"),  # accesses since it was inserted, that one included
        ("session", "i4"),  # the session that inserted it, -1: unknown
        ("cls", "u1"),  # class of candidates, chosen by the policy at release
        ("queue", "u1"),  # `Queue`, for statistics and routing
        ("token_type", "u1"),  # `TokenType`
        ("flags", "u1"),  # the bits below
    ],
    align=True,
)
GENERATED = 1  # made by decoding, and not matched by a prompt since
SHARED = 2  # matched by a session other than the one that inserted it
LOOSE = 4  # may be evicted while children are resident (the optimum's; see its module)

#: One remembered eviction.
GHOST = np.dtype(
    [
        ("fingerprint", "i8"),  # the identity, or in a live engine the block's hash; -1: empty
        ("time", "f8"),  # seconds of the last access before the eviction
        ("count", "i4"),
        ("session", "i4"),
        ("offset", "i4"),
        ("token_type", "u1"),
        ("queue", "u1"),
        ("flags", "u1"),
        ("cls", "u1"),
    ],
    align=True,
)

#: The pool's own numbers; an array of one.
POOL = np.dtype(
    [
        ("now", "f8"),  # seconds; never falls; constant while a request is served
        ("access", "i8"),  # number of the latest access
        ("release", "i8"),  # number of the latest release; vLLM's own order
        ("version", "i8"),  # raised whenever scores change for a reason other than `now`
        ("free", "i8"),  # slots without a hash, on the stack `free_slots`
        ("evictions", "i8"),
        ("sampled", "i8"),  # victims chosen from a sample
        ("random", "u8"),  # state of the sampler
        ("ghost_next", "i8"),  # where the ring of ghosts is written next
        ("deepest", "f8"),  # largest offset seen in the structural queue, decaying by the window
        ("closed", "i8"),  # 1: leaves only (prefix closure); 0: any unreferenced block
        ("stepwise", "i8"),  # 1: the policy chooses each victim anew
        ("horizon", "f8"),  # above 0: a lazy class's score is asked for its lowest value until so many seconds from now
        ("span", "f8"),  # seconds for which floors are made
        ("looked", "i8"),  # scores asked for since the floors were made
        ("block_size", "i8"),  # tokens
    ],
    align=True,
)

#: The request being served; an array of one.
REQUEST = np.dtype(
    [
        ("number", "i8"),
        ("prompt_start", "i8"),  # where its prompt blocks stand in the trace
        ("generated_start", "i8"),
        ("probability", "f8"),  # that its session sends another request, says the predictor; 0 without one
        ("session", "i4"),
        ("turn", "i4"),
        ("prompt_tokens", "i4"),
        ("output_tokens", "i4"),
        ("prompt_blocks", "i4"),  # full blocks of its prompt
        ("agentic", "u1"),  # its session has had tools, calls of them, or their outputs
        ("continues", "u1"),  # the predictor expects another turn: that probability is above a half
        ("ended_for_tool", "u1"),
    ],
    align=True,
)

#: One class of candidates: a heap in the arena.
HEAP = np.dtype(
    [
        ("start", "i8"),
        ("place", "i4"),  # where the class stands in the list of those that are not empty
        ("listed", "i4"),  # entry of that list: in record i the i-th class of it
        ("occupied", "i8"),  # in record 0: the list's length
        ("size", "i8"),
        ("room", "i8"),
        ("head", "i4"),  # the slot that `score` belongs to
        # 1: the policy's key orders it, only its head can be lowest; 0: every leaf is scored; LAZY: only those whose
        # floor, the lowest that the score can be for a while, is low enough
        ("ordered", "u1"),
        ("dirty", "u1"),
        ("sampled", "u1"),  # 1: too large, only a sample was scored; FLOORS: its keys are floors
        ("score", "f8"),
        ("now", "f8"),  # the clock and the version that the scores hold for, of floors until when
        ("version", "i8"),
    ],
    align=True,
)


LAZY = 2
FLOORS = 2


class Cache(NamedTuple):
    """All arrays of one cache. U identities, N slots, G ghosts."""

    parent: Any  # (U,) int32, see `Trace`
    offset: Any  # (U,) int32
    token_type: Any  # (U,) uint8
    fingerprint: Any  # (U,) int64 in a live engine; (0,) in the simulator, where it is the identity
    first: Any  # (U,) int32, the oldest slot with this identity, -1: not resident
    children: Any  # (U,) int32, how many of its children are resident
    blocks: Any  # (N,) BLOCK
    free_slots: Any  # (N,) int32, a stack
    heaps: Any  # (C,) HEAP
    arena: Any  # int32, the heaps' slots
    ghosts: Any  # (G,) GHOST, a ring
    ghost_table: Any  # int32, hash table of the ring's positions, -1: empty
    held: Any  # (4,) int64, unreferenced resident blocks by queue
    evicted: Any  # (4 + 7,) int64, evictions so far by queue, then by token type
    pool: Any  # (1,) POOL
    request: Any  # (1,) REQUEST
    params: Any  # float64, the policy's parameters as its `encode` gives them
    reals: Any  # float64, the policy's own state
    ints: Any  # int64, the policy's own state
    future: Any  # int32, next uses; empty for every policy that is not an oracle


def _records(dtype: np.dtype[Any]) -> types.Array:
    return types.Array(numba.from_dtype(dtype), 1, "C")


INT = types.int64
BLOCKS = _records(BLOCK)
HEAPS = _records(HEAP)
CACHE = types.NamedTuple(
    (
        types.int32[::1],
        types.int32[::1],
        types.uint8[::1],
        types.int64[::1],
        types.int32[::1],
        types.int32[::1],
        _records(BLOCK),
        types.int32[::1],
        _records(HEAP),
        types.int32[::1],
        _records(GHOST),
        types.int32[::1],
        types.int64[::1],
        types.int64[::1],
        _records(POOL),
        _records(REQUEST),
        types.float64[::1],
        types.float64[::1],
        types.int64[::1],
        types.int32[::1],
    ),
    Cache,
)

#: Words of a cache in a handle (`saecache_rl.handles`): address and length of each array.
CACHE_WORDS = 2 * len(Cache._fields)

_ints, _longs = array_at(types.int32[::1]), array_at(types.int64[::1])
_bytes, _reals = array_at(types.uint8[::1]), array_at(types.float64[::1])
_blocks, _heaps, _ghosts = array_at(BLOCKS), array_at(HEAPS), array_at(_records(GHOST))
_pool, _request = array_at(_records(POOL)), array_at(_records(REQUEST))


@kernel(CACHE(types.int64[::1]), forceinline=True)
def cache_at(handle):  # type: ignore[no-untyped-def]
    """The cache whose arrays the first words of a handle name."""
    h = handle
    return Cache(
        _ints(h[0], h[1]),
        _ints(h[2], h[3]),
        _bytes(h[4], h[5]),
        _longs(h[6], h[7]),
        _ints(h[8], h[9]),
        _ints(h[10], h[11]),
        _blocks(h[12], h[13]),
        _ints(h[14], h[15]),
        _heaps(h[16], h[17]),
        _ints(h[18], h[19]),
        _ghosts(h[20], h[21]),
        _ints(h[22], h[23]),
        _longs(h[24], h[25]),
        _longs(h[26], h[27]),
        _pool(h[28], h[29]),
        _request(h[30], h[31]),
        _reals(h[32], h[33]),
        _reals(h[34], h[35]),
        _longs(h[36], h[37]),
        _ints(h[38], h[39]),
    )


# The four functions of a policy; `saecache_rl.cache.policy` says what each is for.
SLOTS = types.int32[::1]
SCORE = types.void(CACHE, SLOTS, types.int64, types.float64[::1])
ON_ACCESS = types.void(CACHE, SLOTS, types.int64, types.int32[::1])
ON_RELEASE = types.void(CACHE, SLOTS, types.int64)
ON_EVICT = types.void(CACHE, SLOTS, types.int64)
