"""The compiled loop of the simulator: requests through the pool one by one, and the counting of what happened.

The clock is instant: a request is over before the next arrives. Nothing is counted from a policy: hits are what the
pool matched, and the statistics by queue read the label on the block.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import types

from saecache_rl.cache.ghosts import find_ghost, fingerprint_of, forget_ghost
from saecache_rl.cache.layout import CACHE, CACHE_WORDS, INT, ON_ACCESS, ON_EVICT, ON_RELEASE, SCORE, Cache, cache_at
from saecache_rl.cache.policy import Functions
from saecache_rl.cache.pool import insert, match, release, release_unhashed, touch
from saecache_rl.cache.victims import take
from saecache_rl.compiled import kernel
from saecache_rl.engines.stats import NUM_GAP_KINDS, NUM_OFFSET_BINS
from saecache_rl.handles import Handle, array_addresses, array_at, function_addresses, function_at
from saecache_rl.vocabulary import NUM_QUEUES, NUM_TOKEN_TYPES, Queue

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
    probability: Any  # (R,) float64
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


COUNTERS = types.NamedTuple(
    (types.int64[::1], types.int64[:, ::1], types.int64[:, ::1], types.int64[:, ::1], types.float64[:, ::1]), Counters
)
_ints, _longs = array_at(types.int32[::1]), array_at(types.int64[::1])
_bytes, _reals = array_at(types.uint8[::1]), array_at(types.float64[::1])
_by_queue = array_at(types.int64[:, ::1], NUM_QUEUES)
_by_type = array_at(types.int64[:, ::1], NUM_TOKEN_TYPES)
_by_bin = array_at(types.int64[:, ::1], NUM_OFFSET_BINS)
_by_kind = array_at(types.float64[:, ::1], NUM_GAP_KINDS)
score_at, on_access_at = function_at(SCORE), function_at(ON_ACCESS)
on_release_at, on_evict_at = function_at(ON_RELEASE), function_at(ON_EVICT)
#: Words of a handle that name the policy's functions; what an engine adds to one follows them.
FUNCTION_WORDS = 8


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
    begin = 0
    for i in range(1, matchable + 1):  # by runs of one type, cut where the hits end
        kind = cache.token_type[prompt[begin]]
        if i in (matchable, hits) or cache.token_type[prompt[i]] != kind:
            counters.types[0, kind] += i - begin
            if begin < hits:
                counters.types[1, kind] += i - begin
            begin = i
    if len(cache.heaps) == 1:  # a policy without queues
        counters.queues[0, 0] += hits
    else:
        for i in range(hits):
            block = cache.blocks[chain[i]]
            counters.queues[0, block.queue] += 1
            if block.queue == STRUCTURAL:
                b = _bin(block.offset, deepest)
                counters.offsets[0, b] += 1
                counters.offsets[1, b] += 1
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


@kernel(inline="always")
def _inserts_again(cache, identities, begin, end):  # type: ignore[no-untyped-def]
    """Whether one of ``identities[begin:end]`` is resident."""
    again = False
    for i in range(begin, end):
        again |= cache.first[identities[i]] >= 0
    return again


@kernel(types.void(COUNTERS, types.float64, INT))
def _count_gap(counters, gap, kind):  # type: ignore[no-untyped-def]
    if gap > 0.0:
        log = np.log(gap)
        counters.gaps[0, kind] += 1.0
        counters.gaps[1, kind] += log
        counters.gaps[2, kind] += log * log


def make_handle(
    cache: Cache, requests: Requests, counters: Counters, work: Work, hit_blocks: Any, functions: Functions
) -> Handle:
    """The addresses of everything that `serve` works on."""
    words = array_addresses([*cache, *requests, *counters, *work, hit_blocks])
    for function, signature in (
        (functions.score, SCORE),
        (functions.on_access, ON_ACCESS),
        (functions.on_release, ON_RELEASE),
        (functions.on_evict, ON_EVICT),
    ):
        words += function_addresses(function, signature)
    return np.array(words, np.int64)


@kernel(forceinline=True)
def engine_at(handle):  # type: ignore[no-untyped-def]
    """What `make_handle` laid down: cache, requests, counters, work, hit_blocks, and the words of the functions."""
    h = handle
    cache = cache_at(h)
    h = h[CACHE_WORDS:]
    requests = Requests(
        _reals(h[0], h[1]),
        _ints(h[2], h[3]),
        _ints(h[4], h[5]),
        _ints(h[6], h[7]),
        _longs(h[8], h[9]),
        _ints(h[10], h[11]),
        _longs(h[12], h[13]),
        _ints(h[14], h[15]),
        _ints(h[16], h[17]),
        _ints(h[18], h[19]),
        _bytes(h[20], h[21]),
        _bytes(h[22], h[23]),
        _reals(h[24], h[25]),
        _bytes(h[26], h[27]),
        _reals(h[28], h[29]),
        _bytes(h[30], h[31]),
    )
    h = h[32:]
    counters = Counters(
        _longs(h[0], h[1]), _by_queue(h[2], h[3]), _by_type(h[4], h[5]), _by_bin(h[6], h[7]), _by_kind(h[8], h[9])
    )
    work = Work(_ints(h[10], h[11]), _ints(h[12], h[13]), _ints(h[14], h[15]), _reals(h[16], h[17]))
    hit_blocks = _ints(h[18], h[19])
    return cache, requests, counters, work, hit_blocks, h[20:]


@kernel(forceinline=True)
def begin_request(cache, requests, counters, chain, hit_blocks, on_access, block_size, r):  # type: ignore[no-untyped-def]
    """Schedule request `r`: match and reference what is resident, count it, tell the policy. Return the hits."""
    pool = cache.pool[0]
    request = cache.request[0]
    pool.now = max(pool.now, requests.arrival[r])
    prompt = requests.prompt_blocks[requests.prompt_start[r] : requests.prompt_start[r + 1]]
    tokens = requests.prompt_tokens[r]
    request.number = r
    request.prompt_start = requests.prompt_start[r]
    request.generated_start = requests.generated_start[r]
    request.session = requests.session[r]
    request.turn = requests.turn[r]
    request.prompt_tokens = tokens
    request.output_tokens = requests.output_tokens[r]
    request.prompt_blocks = len(prompt)
    request.agentic = requests.agentic[r]
    request.continues = requests.continues[r]
    request.probability = requests.probability[r]
    request.ended_for_tool = requests.ended_for_tool[r]
    matchable = (tokens - 1) // block_size
    hits = match(cache, prompt, matchable)
    hit_blocks[r] = hits
    touch(cache, prompt, hits, chain)
    _count(cache, counters, chain, hits, prompt, matchable, tokens, block_size)
    _count_gap(counters, requests.gap_seconds[r], requests.gap_kind[r])
    on_access(cache, chain, hits, prompt[hits:])
    if len(cache.ghosts) > 0:
        for i in range(hits, len(prompt)):
            ring = find_ghost(cache, fingerprint_of(cache, prompt[i]))
            if ring >= 0:
                forget_ghost(cache, ring)
    return hits


@kernel(inline="always")
def prompt_slots(requests, block_size, r, hits):  # type: ignore[no-untyped-def]
    """Slots that the prompt of request `r` takes, a partial last block included."""
    return (requests.prompt_tokens[r] + block_size - 1) // block_size - hits


@kernel(forceinline=True)
def slots_at_once(cache, requests, block_size, r, hits):  # type: ignore[no-untyped-def]
    """How many slots request `r` takes before it inserts a block; it takes further ones one by one.

    A prompt takes its slots at once, a reply one by one, each after the last has been inserted. That makes a difference
    only where inserting a block again lays an older copy open, so that usually all are taken at once.
    """
    need = requests.request_blocks[r] - hits
    prompt_begin, prompt_end = requests.prompt_start[r] + hits, requests.prompt_start[r + 1]
    if _inserts_again(cache, requests.prompt_blocks, prompt_begin, prompt_end) or _inserts_again(
        cache, requests.generated_blocks, requests.generated_start[r], requests.generated_start[r + 1]
    ):
        return min(need, prompt_slots(requests, block_size, r, hits))
    return need


@kernel(forceinline=True)
def insert_taken(cache, requests, work, r, hits, used, taken):  # type: ignore[no-untyped-def]
    """Insert the next blocks of request `r` into ``work.taken[used:taken]``; return how many are inserted by now."""
    prompt = requests.prompt_blocks[requests.prompt_start[r] : requests.prompt_start[r + 1]]
    generated = requests.generated_blocks[requests.generated_start[r] : requests.generated_start[r + 1]]
    full = len(prompt)
    size = full + len(generated)
    chain = work.chain
    for i in range(hits + used, min(full, hits + taken)):
        chain[i] = work.taken[i - hits]
        insert(cache, chain[i], prompt[i], False)
    for i in range(max(full, hits + used), min(size, hits + taken)):
        chain[i] = work.taken[i - hits]
        insert(cache, chain[i], generated[i - full], True)
    return min(size - hits, taken)


@kernel(forceinline=True)
def end_request(cache, counters, on_release, work, size, need, used):  # type: ignore[no-untyped-def]
    """The request is over: its `size` full blocks stay, those of the `need` slots it took that hold none are free."""
    release(cache, on_release, work.chain, size)
    for i in range(need - 1, used - 1, -1):
        release_unhashed(cache, work.taken[i])
    for q in range(len(cache.held)):
        counters.queues[2, q] += cache.held[q]


@kernel(types.int64(types.int64[::1], types.int64, types.int64, types.int64))
def serve(handle, block_size, begin, end):  # type: ignore[no-untyped-def]
    """Serve requests `begin` to `end`, one after another; write each one's hits to `hit_blocks`.

    Returns the number of requests served: fewer than asked only if one found no room.
    """
    cache, requests, counters, work, hit_blocks, h = engine_at(handle)
    score = score_at(h[0], h[1])
    on_access = on_access_at(h[2], h[3])
    on_release = on_release_at(h[4], h[5])
    on_evict = on_evict_at(h[6], h[7])
    cache.pool[0].deepest *= DEEPEST_DECAY
    cache.pool[0].version += 1
    for r in range(begin, end):
        hits = begin_request(cache, requests, counters, work.chain, hit_blocks, on_access, block_size, r)
        need = requests.request_blocks[r] - hits
        goal = slots_at_once(cache, requests, block_size, r, hits)
        taken = 0
        used = 0
        while True:
            wanted = goal - taken
            if take(cache, score, on_evict, wanted, work.taken[taken:], work.slots, work.scores) < wanted:
                return r - begin
            taken = goal
            used = insert_taken(cache, requests, work, r, hits, used, taken)
            if goal == need:
                break
            goal += 1
        end_request(cache, counters, on_release, work, hits + used, need, used)
    return end - begin
