"""What a call of a live cache reads and where its arrays stand in the handle (`saecache_rl.handles`).

The handle: the cache's arrays, the nodes', the retention's, the counters', the work room, and the addresses of the
policy's four functions and of the score with hints, and whether the policy wants to know of accesses.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from numba import types

from saecache_rl.cache.layout import CACHE, CACHE_WORDS, ON_ACCESS, ON_EVICT, ON_RELEASE, SCORE
from saecache_rl.compiled import kernel
from saecache_rl.engines.serve import COUNTERS, Counters
from saecache_rl.engines.stats import NUM_GAP_KINDS, NUM_OFFSET_BINS
from saecache_rl.engines.vllm.nodes import NODES_WORDS
from saecache_rl.engines.vllm.retention import RETENTION_WORDS
from saecache_rl.handles import array_at, function_at
from saecache_rl.vocabulary import NUM_QUEUES, NUM_TOKEN_TYPES

#: What a call says of the request and the time; an array of one.
CALL = np.dtype(
    [
        ("number", "i8"),
        ("session", "i8"),
        ("turn", "i8"),
        ("prompt_tokens", "i8"),
        ("output_tokens", "i8"),
        ("prompt_blocks", "i8"),  # full blocks of its prompt
        ("agentic", "i8"),
        ("continues", "i8"),
        ("ended_for_tool", "i8"),
        ("access", "i8"),  # number of the request's access
        ("matchable", "i8"),
        ("gap_kind", "i8"),
        ("priority", "i8"),  # 0 to 99; -1: no reuse; -2: no hint
        ("final", "i8"),  # the request is over
        ("now", "f8"),
        ("gap_seconds", "f8"),
        ("retention_seconds", "f8"),
        ("probability", "f8"),  # that the session goes on
    ]
)
NO_REUSE, NO_HINT = -1, -2


class Work(NamedTuple):
    """Room that a call needs, and what it reads."""

    chain: Any  # (N,) int32
    taken: Any  # (N,) int32, block ids that a call gives back
    slots: Any  # int32
    scores: Any  # float64
    call: Any  # (1,) CALL


WORK = types.NamedTuple(
    (
        types.int32[::1],
        types.int32[::1],
        types.int32[::1],
        types.float64[::1],
        types.Array(numba.from_dtype(CALL), 1, "C"),
    ),
    Work,
)
_ints, _longs, _reals = array_at(types.int32[::1]), array_at(types.int64[::1]), array_at(types.float64[::1])
_call = array_at(types.Array(numba.from_dtype(CALL), 1, "C"))
_by_queue = array_at(types.int64[:, ::1], NUM_QUEUES)
_by_type = array_at(types.int64[:, ::1], NUM_TOKEN_TYPES)
_by_bin = array_at(types.int64[:, ::1], NUM_OFFSET_BINS)
_by_kind = array_at(types.float64[:, ::1], NUM_GAP_KINDS)
score_at, on_access_at = function_at(SCORE), function_at(ON_ACCESS)
on_release_at, on_evict_at = function_at(ON_RELEASE), function_at(ON_EVICT)

AFTER_CACHE = CACHE_WORDS
AFTER_NODES = AFTER_CACHE + NODES_WORDS
AFTER_RETENTION = AFTER_NODES + RETENTION_WORDS
AFTER_COUNTERS = AFTER_RETENTION + 2 * len(Counters._fields)
FUNCTIONS = AFTER_COUNTERS + 2 * len(Work._fields)
HANDLE = types.int64[::1]
IDS = types.int32[::1]


@kernel(COUNTERS(HANDLE), forceinline=True)
def counters_at(handle):  # type: ignore[no-untyped-def]
    """The counters that a handle names."""
    h = handle[AFTER_RETENTION:]
    return Counters(
        _longs(h[0], h[1]), _by_queue(h[2], h[3]), _by_type(h[4], h[5]), _by_bin(h[6], h[7]), _by_kind(h[8], h[9])
    )


@kernel(WORK(HANDLE), forceinline=True)
def work_at(handle):  # type: ignore[no-untyped-def]
    """The work room that a handle names."""
    h = handle[AFTER_COUNTERS:]
    return Work(
        _ints(h[0], h[1]),
        _ints(h[2], h[3]),
        _ints(h[4], h[5]),
        _reals(h[6], h[7]),
        _call(h[8], h[9]),
    )


@kernel(types.void(CACHE, WORK))
def set_request(cache, work):  # type: ignore[no-untyped-def]
    """Put what the call says of the request and the time into the cache."""
    call = work.call[0]
    request = cache.request[0]
    request.number = call.number
    request.prompt_start = 0
    request.generated_start = 0
    request.session = call.session
    request.turn = call.turn
    request.prompt_tokens = call.prompt_tokens
    request.output_tokens = call.output_tokens
    request.prompt_blocks = call.prompt_blocks
    request.agentic = call.agentic
    request.continues = call.continues
    request.probability = call.probability
    request.ended_for_tool = call.ended_for_tool
    cache.pool[0].now = max(cache.pool[0].now, work.call[0].now)
