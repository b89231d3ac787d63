"""SAECache: eviction by what a block's tokens are and what kind of session they belong to (arXiv 2605.18825)."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from saecache_rl.cache.layout import ON_RELEASE, SCORE
from saecache_rl.cache.params import Param, ParamSpace, PolicyParams
from saecache_rl.cache.policies.routing import AGENTIC, CHAT, EVICT_FIRST, STRUCTURAL, queue_of_session, route
from saecache_rl.cache.policies.survival import LOG_ZERO, log_survival
from saecache_rl.cache.policy import Functions, Policy
from saecache_rl.compiled import kernel
from saecache_rl.vocabulary import NUM_TOKEN_TYPES, TOKEN_TYPE_NAMES

#: dt is at least this, in seconds.
SHORTEST_AGE = 1e-3

# Classes of candidates: evict-first, deep structural, then one for each (chat, type), (agentic, type) and, up to an
# offset, (structural, type, offset). In all but deep structural the score falls with age alone, so that their heads
# suffice however many leaves there are.
DEEP_STRUCTURAL = 1
FIRST_CHAT = 2
FIRST_AGENTIC = FIRST_CHAT + NUM_TOKEN_TYPES
FIRST_STRUCTURAL = FIRST_AGENTIC + NUM_TOKEN_TYPES
SHALLOW = (255 - FIRST_STRUCTURAL) // NUM_TOKEN_TYPES  # offsets with classes of their own

# Places in `cache.params`: ln alpha by queue (structural, chat, agentic), ln w by type, mu and sigma of chat and
# agentic, gamma.
LOG_ALPHA = -1  # + queue, whose first tunable is structural = 1
LOG_WEIGHT = 3
MU = 10
SIGMA = 12
GAMMA = 14

START_ALPHA = 1.0
#: Reuse rates by token type (SAECache); tool_definition as system, unknown as user.
START_WEIGHTS = {
    "system": 0.923,
    "tool_definition": 0.923,
    "user": 0.308,
    "response": 0.278,
    "tool_output": 0.230,
    "reasoning": 0.022,
    "unknown": 0.308,
}
#: mu and sigma of the gap between two turns, in ln seconds (SAECache).
START_GAPS = {"chat": (4.15, 0.97), "agentic": (1.81, 1.09)}


@kernel(ON_RELEASE)
def on_release(cache, chain, size):  # type: ignore[no-untyped-def]
    """Route, and order each class by the time of the last access."""
    session_queue = queue_of_session(cache)
    for i in range(size):
        queue = route(cache, chain[i], session_queue)
        block = cache.blocks[chain[i]]
        block.key = block.time
        if queue == EVICT_FIRST:
            block.cls = 0
        elif queue == AGENTIC:
            block.cls = FIRST_AGENTIC + block.token_type
        elif queue == CHAT:
            block.cls = FIRST_CHAT + block.token_type
        elif block.offset < SHALLOW:
            block.cls = FIRST_STRUCTURAL + block.token_type * SHALLOW + block.offset
        else:
            block.cls = DEEP_STRUCTURAL


@kernel(SCORE)
def score(cache, slots, size, scores):  # type: ignore[no-untyped-def]
    """ln P(b) = ln alpha_q + ln w_tau + ln p_q(b) - ln dt; minus infinity in evict-first."""
    params = cache.params
    now = cache.pool[0].now
    deepest = max(cache.pool[0].deepest, 1.0)
    for i in range(size):
        block = cache.blocks[slots[i]]
        if block.queue == EVICT_FIRST:
            scores[i] = -math.inf
            continue
        age = max(now - block.time, SHORTEST_AGE)
        if block.queue == STRUCTURAL:
            share = 1.0 - (block.offset / deepest) ** params[GAMMA]
            log_reuse = math.log(share) if share > 0.0 else LOG_ZERO
        else:
            agentic = 1 if block.queue == AGENTIC else 0
            log_reuse = log_survival(age, params[MU + agentic], params[SIGMA + agentic])
        scores[i] = params[LOG_ALPHA + block.queue] + params[LOG_WEIGHT + block.token_type] + log_reuse - math.log(age)


def _space() -> ParamSpace:
    queues = ("structural", "chat", "agentic")
    alphas = tuple(Param(f"alpha.{q}", START_ALPHA, 0.1, 3.0, "log", f"weight of the {q} queue") for q in queues)
    weights = tuple(
        Param(f"weight.{t}", min(max(START_WEIGHTS[t], 0.1), 5.0), 0.1, 5.0, "log", f"weight of {t} blocks")
        for t in TOKEN_TYPE_NAMES
    )
    mus = tuple(Param(f"mu.{k}", START_GAPS[k][0], -5.0, 12.0, "linear", f"mean of ln gap, {k}") for k in START_GAPS)
    sigmas = tuple(
        Param(f"sigma.{k}", START_GAPS[k][1], 0.05, 5.0, "log", f"deviation of ln gap, {k}") for k in START_GAPS
    )
    gamma = Param("gamma", 1.0, 0.1, 8.0, "log", "how late reuse of structural blocks falls off with their offset")
    return ParamSpace((*alphas, *weights, *mus, *sigmas, gamma))


SPACE = _space()


class SAECache(Policy):
    """P(b) = alpha_q * w_tau * p_q(b) / dt over four queues; the lowest is evicted, evict-first before all others.

    dt = max(now - last access, 1 ms). In chat and agentic p_q = 1 - F_LN(dt; mu_q, sigma_q); in structural
    p_q = 1 - (offset / max_offset)^gamma. Compared as logarithms, so that no score underflows. Ties: deeper, then
    older; blocks of one class that are all younger than 1 ms go by time first.

    The paper starts reasoning at 0.022 and bounds weights by 0.1: the start here is the bound.
    """

    name = "saecache"
    uses_predictor = True
    ghosts = 1.0

    def functions(self) -> Functions:
        """The compiled functions."""
        return Functions(score=score, on_release=on_release)

    def classes(self) -> tuple[bool, ...]:
        """All ordered by time, but deep structural."""
        return tuple(c != DEEP_STRUCTURAL for c in range(FIRST_STRUCTURAL + NUM_TOKEN_TYPES * SHALLOW))

    def space(self) -> ParamSpace:
        """alpha, weight, mu, sigma, gamma."""
        return SPACE

    def encode(self, params: PolicyParams) -> npt.NDArray[np.float64]:
        """The values in the space's order, alpha and weight as logarithms."""
        values = params.values.copy()
        values[:MU] = np.log(values[:MU])
        return values
