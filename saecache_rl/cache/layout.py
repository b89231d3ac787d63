"""The arrays of a cache, as compiled code sees them: one record a slot, one a ghost, one for the pool's own counters.

A slot is a physical block (vLLM's block id, less the reserved one). An identity is a small integer: in the simulator the
trace's dense id, in a live engine the number of a node that is used again once its block is gone. `Cache` joins all
arrays; every compiled function of the pool and of a policy takes it as its first argument.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from numba import types

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
        ("routed", "i8"),  # 1: the policy routes blocks to queues, so `held` is kept by queue
    ],
    align=True,
)

#: The request being served; an array of one.
REQUEST = np.dtype(
    [
        ("number", "i8"),
        ("prompt_start", "i8"),  # where its prompt blocks stand in the trace
        ("generated_start", "i8"),
        ("session", "i4"),
        ("turn", "i4"),
        ("prompt_tokens", "i4"),
        ("output_tokens", "i4"),
        ("prompt_blocks", "i4"),  # full blocks of its prompt
        ("agentic", "u1"),  # its session has had tools, calls of them, or their outputs
        ("continues", "u1"),  # the predictor expects another turn
        ("ended_for_tool", "u1"),
    ],
    align=True,
)

#: One class of candidates: a heap in the arena.
HEAP = np.dtype(
    [
        ("start", "i8"),
        ("size", "i8"),
        ("room", "i8"),
        ("head", "i4"),  # the slot that `score` belongs to
        ("ordered", "u1"),  # 1: the policy's key orders it, only its head can be lowest; 0: every leaf is scored
        ("dirty", "u1"),
        ("sampled", "u1"),
        ("score", "f8"),
        ("now", "f8"),  # the clock and the version that the scores hold for
        ("version", "i8"),
    ],
    align=True,
)


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
    held: Any  # (4,) int64, resident blocks by queue
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

# The four functions of a policy; `saecache_rl.cache.policy` says what each is for.
SLOTS = types.int32[::1]
SCORE = types.void(CACHE, SLOTS, types.int64, types.float64[::1])
ON_ACCESS = types.void(CACHE, SLOTS, types.int64, types.int32[::1])
ON_RELEASE = types.void(CACHE, SLOTS, types.int64)
ON_EVICT = types.void(CACHE, SLOTS, types.int64)
