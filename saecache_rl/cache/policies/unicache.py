"""UniCache: per-queue reuse distributions with fixed parameters and adaptive queue weights (SIGMETRICS 2026)."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from saecache_rl.cache.layout import ON_RELEASE, SCORE
from saecache_rl.cache.params import Param, ParamSpace, PolicyParams
from saecache_rl.cache.policies.routing import AGENTIC, EVICT_FIRST, STRUCTURAL, queue_of_session, route
from saecache_rl.cache.policies.survival import LOG_ZERO, log_survival
from saecache_rl.cache.policy import Functions, Policy
from saecache_rl.compiled import kernel

#: mu and sigma of the gap between two turns, in ln seconds.
CHAT_GAP = (4.77, 1.279)
AGENTIC_GAP = (1.81, 1.092)
SHORTEST_AGE = 1e-3


@kernel(ON_RELEASE)
def on_release(cache, chain, size):  # type: ignore[no-untyped-def]
    """Route; a class is a queue, ordered by time of access, the structural one by offset."""
    session_queue = queue_of_session(cache)
    for i in range(size):
        queue = route(cache, chain[i], session_queue)
        block = cache.blocks[chain[i]]
        block.cls = queue
        block.key = -block.offset if queue == STRUCTURAL else block.time


@kernel(SCORE)
def score(cache, slots, size, scores):  # type: ignore[no-untyped-def]
    """ln(alpha_q * p_q); p_q = 1 - F_LN(dt), structural 1 - offset / max_offset; minus infinity in evict-first."""
    now = cache.pool[0].now
    deepest = max(cache.pool[0].deepest, 1.0)
    for i in range(size):
        block = cache.blocks[slots[i]]
        if block.queue == EVICT_FIRST:
            scores[i] = -math.inf
            continue
        if block.queue == STRUCTURAL:
            share = 1.0 - block.offset / deepest
            log_reuse = math.log(share) if share > 0.0 else LOG_ZERO
        else:
            age = max(now - block.time, SHORTEST_AGE)
            if block.queue == AGENTIC:
                log_reuse = log_survival(age, AGENTIC_GAP[0], AGENTIC_GAP[1])
            else:
                log_reuse = log_survival(age, CHAT_GAP[0], CHAT_GAP[1])
        scores[i] = cache.params[block.queue - 1] + log_reuse


SPACE = ParamSpace(
    tuple(
        Param(f"alpha.{queue}", 1.0, 0.1, 3.0, "log", f"weight of the {queue} queue")
        for queue in ("structural", "chat", "agentic")
    )
)


class UniCache(Policy):
    """P(b) = alpha_q * p_q(b) over SAECache's queues, with no token types and no division by age.

    Within a queue this is LRU, or deepest first in the structural one; what it can gain comes from the comparison of
    queues.
    """

    name = "unicache"
    uses_predictor = True
    ghosts = 1.0

    def functions(self) -> Functions:
        """The compiled functions."""
        return Functions(score=score, on_release=on_release)

    def classes(self) -> tuple[bool, ...]:
        """One for each queue, all ordered."""
        return (True,) * 4

    def space(self) -> ParamSpace:
        """The queue weights alpha."""
        return SPACE

    def encode(self, params: PolicyParams) -> npt.NDArray[np.float64]:
        """ln alpha by queue."""
        return np.log(params.values)
