"""The compiled loop of the simulator: requests through the pool one by one, and the counting of what happened.

The clock is instant: a request is over before the next arrives. Nothing is counted from a policy: hits are what the
pool matched, and the statistics by queue read the label on the block.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import types

from saecache_rl.cache.ghosts import find_ghost, fingerprint_of, forget_ghost
from saecache_rl.cache.layout import CACHE, INT, ON_ACCESS, ON_EVICT, ON_RELEASE, SCORE
from saecache_rl.cache.pool import insert, match, release, release_unhashed, take, touch
from saecache_rl.compiled import kernel
from saecache_rl.engines.stats import NUM_OFFSET_BINS
from saecache_rl.vocabulary import Queue

STRUCTURAL = int(Queue.STRUCTURAL)
#: The largest structural offset is forgotten by this factor a window.
DEEPEST_DECAY = 0.99


class Requests(NamedTuple):
    """The columns of a trace, and what is known of each request when it is released."""

    arrival: Any  # (R,) float64
    prompt_tokens: Any  # (R,) int32
    output_tokens: Any  # (R,) int32
    request_blocks: Any  # (R,) int32
    prompt_start: Any  # (R + 1,) int64
    prompt_blocks: Any  # int32
    generated_start: Any  # (R + 1,) int64
    generated_blocks: Any  # int32
    session: Any  # (R,) int32
    turn: Any  # (R,) int32
    agentic: Any  # (R,) uint8
    continues: Any  # (R,) uint8
    ended_for_tool: Any  # (R,) uint8
    gap_seconds: Any  # (R,) float64, nan where no earlier turn
    gap_kind: Any  # (R,) uint8, 0 chat or 1 agentic: the kind of the session when the gap began


class Counters(NamedTuple):
    """What a window counts; see `WindowStats` for each."""

    totals: Any  # (4,) int64: prompt tokens, hit tokens, matchable blocks, hit blocks
    queues: Any  # (3, 4) int64: hits, ghost misses, sum of held
    types: Any  # (3, 7) int64: accesses, hits, ghost misses
    offsets: Any  # (2, 16) int64: accesses, hits
    gaps: Any  # (3, 2) float64: count, sum of ln, sum of squared ln


class Work(NamedTuple):
    """Room that a request needs while it is served."""

    chain: Any  # int32, the slots of its blocks
    taken: Any  # int32
    slots: Any  # (N,) int32
    scores: Any  # (N,) float64


REQUESTS = types.NamedTuple(
    (
        types.float64[::1],
        types.int32[::1],
        types.int32[::1],
        types.int32[::1],
        types.int64[::1],
        types.int32[::1],
        types.int64[::1],
        types.int32[::1],
        types.int32[::1],
        types.int32[::1],
        types.uint8[::1],
        types.uint8[::1],
        types.uint8[::1],
        types.float64[::1],
        types.uint8[::1],
    ),
    Requests,
)
COUNTERS = types.NamedTuple(
    (types.int64[::1], types.int64[:, ::1], types.int64[:, ::1], types.int64[:, ::1], types.float64[:, ::1]), Counters
)
WORK = types.NamedTuple((types.int32[::1], types.int32[::1], types.int32[::1], types.float64[::1]), Work)


@kernel(inline="always")
def _bin(offset, deepest):  # type: ignore[no-untyped-def]
    if deepest <= 0.0:
        return 0
    return min(int(offset / deepest * NUM_OFFSET_BINS), NUM_OFFSET_BINS - 1)


@kernel(types.void(CACHE, COUNTERS, types.int32[::1], INT, types.int32[::1], INT, INT, INT))
def _count(cache, counters, chain, hits, prompt, matchable, tokens, block_size):  # type: ignore[no-untyped-def]
    """Count one request's matchable blocks: hits, and misses of blocks that are remembered as evicted."""
    counters.totals[0] += tokens
    counters.totals[1] += hits * block_size
    counters.totals[2] += matchable
    counters.totals[3] += hits
    deepest = cache.pool[0].deepest
    for i in range(hits):
        block = cache.blocks[chain[i]]
        counters.queues[0, block.queue] += 1
        counters.types[0, block.token_type] += 1
        counters.types[1, block.token_type] += 1
        if block.queue == STRUCTURAL:
            b = _bin(block.offset, deepest)
            counters.offsets[0, b] += 1
            counters.offsets[1, b] += 1
    for i in range(hits, matchable):
        counters.types[0, cache.token_type[prompt[i]]] += 1
    if len(cache.ghosts) > 0:
        for i in range(hits, len(prompt)):
            ring = find_ghost(cache, fingerprint_of(cache, prompt[i]))
            if ring >= 0:
                ghost = cache.ghosts[ring]
                if i < matchable:
                    counters.queues[1, ghost.queue] += 1
                    counters.types[2, ghost.token_type] += 1
                    if ghost.queue == STRUCTURAL:
                        counters.offsets[0, _bin(ghost.offset, deepest)] += 1


@kernel(types.void(COUNTERS, types.float64, INT))
def _count_gap(counters, gap, kind):  # type: ignore[no-untyped-def]
    if gap > 0.0:
        log = np.log(gap)
        counters.gaps[0, kind] += 1.0
        counters.gaps[1, kind] += log
        counters.gaps[2, kind] += log * log


@kernel(
    types.int64(
        CACHE,
        REQUESTS,
        COUNTERS,
        WORK,
        types.int32[::1],
        types.int64,
        types.int64,
        types.int64,
        types.FunctionType(SCORE),
        types.FunctionType(ON_ACCESS),
        types.FunctionType(ON_RELEASE),
        types.FunctionType(ON_EVICT),
    )
)
def serve(cache, requests, counters, work, hit_blocks, block_size, begin, end, score, on_access, on_release, on_evict):  # type: ignore[no-untyped-def]
    """Serve requests `begin` to `end`, one after another; write each one's hits to `hit_blocks`.

    Returns the number of requests served: fewer than asked only if one found no room.
    """
    pool = cache.pool[0]
    request = cache.request[0]
    chain = work.chain
    pool.deepest *= DEEPEST_DECAY
    pool.version += 1
    for r in range(begin, end):
        pool.now = max(pool.now, requests.arrival[r])
        prompt = requests.prompt_blocks[requests.prompt_start[r] : requests.prompt_start[r + 1]]
        generated = requests.generated_blocks[requests.generated_start[r] : requests.generated_start[r + 1]]
        tokens = requests.prompt_tokens[r]
        full = len(prompt)
        request.number = r
        request.prompt_start = requests.prompt_start[r]
        request.generated_start = requests.generated_start[r]
        request.session = requests.session[r]
        request.turn = requests.turn[r]
        request.prompt_tokens = tokens
        request.output_tokens = requests.output_tokens[r]
        request.prompt_blocks = full
        request.agentic = requests.agentic[r]
        request.continues = requests.continues[r]
        request.ended_for_tool = requests.ended_for_tool[r]
        matchable = (tokens - 1) // block_size
        hits = match(cache, prompt, matchable)
        hit_blocks[r] = hits
        touch(cache, prompt, hits, chain)
        _count(cache, counters, chain, hits, prompt, matchable, tokens, block_size)
        _count_gap(counters, requests.gap_seconds[r], requests.gap_kind[r])
        on_access(cache, chain, hits, prompt[hits:])
        if len(cache.ghosts) > 0:
            for i in range(hits, full):
                ring = find_ghost(cache, fingerprint_of(cache, prompt[i]))
                if ring >= 0:
                    forget_ghost(cache, ring)
        need = requests.request_blocks[r] - hits
        if take(cache, score, on_evict, need, work.taken, work.slots, work.scores) < need:
            return r - begin
        used = 0
        for i in range(hits, full):
            chain[i] = work.taken[used]
            insert(cache, chain[i], prompt[i], False)
            used += 1
        size = full + len(generated)
        for i in range(full, size):
            chain[i] = work.taken[used]
            insert(cache, chain[i], generated[i - full], True)
            used += 1
        release(cache, on_release, chain, size)
        for i in range(need - 1, used - 1, -1):
            release_unhashed(cache, work.taken[i])
        for q in range(len(cache.held)):
            counters.queues[2, q] += cache.held[q]
    return end - begin
