"""A window's counters as `WindowStats`: the one place where they get their names, for every engine."""

from __future__ import annotations

import numpy as np

from saecache_rl.cache.layout import Cache
from saecache_rl.engines.serve import Counters
from saecache_rl.engines.stats import Counts, WindowStats
from saecache_rl.vocabulary import NUM_QUEUES


def window_stats(
    counted: Counters,
    cache: Cache,
    *,
    window: int,
    first_request: int,
    requests: int,
    evicted_before: Counts,
    sampled_before: int,
) -> WindowStats:
    """Copy what was counted since the window began.

    Args:
        counted: the engine's counters, set to zero when the window began.
        cache: whose clock and running totals are read.
        window, first_request, requests: see `WindowStats`.
        evicted_before, sampled_before: the cache's running totals when the window began.
    """
    counters = Counters(*(column.copy() for column in counted))
    evicted = cache.evicted - evicted_before
    prompt_tokens, hit_tokens, matchable, hits = (int(n) for n in counters.totals)
    return WindowStats(
        window=window,
        first_request=first_request,
        requests=requests,
        time=float(cache.pool["now"][0]),
        prompt_tokens=prompt_tokens,
        hit_tokens=hit_tokens,
        matchable_blocks=matchable,
        hit_blocks=hits,
        evictions=int(evicted[:NUM_QUEUES].sum()),
        queue_hits=counters.queues[0],
        queue_ghost_misses=counters.queues[1],
        queue_evictions=evicted[:NUM_QUEUES],
        queue_held=counters.queues[2] / max(requests, 1),
        type_accesses=counters.types[0],
        type_hits=counters.types[1],
        type_ghost_misses=counters.types[2],
        type_evictions=evicted[NUM_QUEUES:],
        offset_accesses=counters.offsets[0],
        offset_hits=counters.offsets[1],
        gap_count=counters.gaps[0].astype(np.int64),
        gap_log_sum=counters.gaps[1],
        gap_log_square_sum=counters.gaps[2],
        sampled_choices=int(cache.pool["sampled"][0]) - sampled_before,
    )
