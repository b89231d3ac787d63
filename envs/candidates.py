"""The observation of an eviction environment: what is known of each candidate, and of the request that needs room.

Every entry has a name and a meaning; nothing that a live engine would not know at that moment is among them:

    layout = EvictionLayout.of(candidates=8)
    observation[layout.index["candidate.0.log_age"]]
    candidates, request = layout.split(observation)      # (8, features), (shared,)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
from numba import types

from saecache_rl.cache.layout import GENERATED, SHARED
from saecache_rl.compiled import kernel
from saecache_rl.engines.serve import engine_at
from saecache_rl.engines.stepped import waiting_at
from saecache_rl.envs.layout import Entry, Layout
from saecache_rl.vocabulary import NUM_QUEUES, NUM_TOKEN_TYPES, QUEUE_NAMES, TOKEN_TYPE_NAMES

#: Counts and seconds are shown as ln(1 + x) / 16, which reaches 1 at 8.9 million and stays there.
SCALE = 16.0
#: A run is followed so far.
LONGEST_RUN = 64

_OF_A_CANDIDATE = (
    ("present", "1 where there is a candidate; without one all its entries are 0"),
    ("log_age", "seconds since the last access"),
    ("log_requests_ago", "requests scheduled since the last access"),
    ("log_accesses", "accesses since it was inserted"),
    ("log_offset", "its index in its chain: how many blocks stand before it"),
    ("log_run", f"blocks of its run: up its chain, last accessed with it, leaves in turn; {LONGEST_RUN} at most"),
    ("log_turn", "turn of the request that accessed it last, 0 for a session's first"),
    ("log_gap", "seconds between that request and the one before it in its session; 0 at the first turn"),
    ("agentic", "1 where the session of that request has had tools"),
    ("ended_for_tool", "1 where the reply to that request called a tool"),
    ("generated", "1 where decoding made it and no prompt has matched it since"),
    ("shared", "1 where a session other than the one that inserted it has matched it"),
    ("spare", "1 where another copy of the same block is resident"),
    *((f"queue.{queue}", "1 where it is in the queue") for queue in QUEUE_NAMES),
    *((f"type.{kind}", "1 where its tokens are of the type") for kind in TOKEN_TYPE_NAMES),
)
_SHARED = (
    ("log_needed", "slots that the waiting request is known to need: its prompt's, then one at a time for its reply"),
    ("log_leaves", "leaves in the cache, candidates or not"),
    ("log_prompt_tokens", "prompt tokens of the waiting request"),
    ("request_hit_ratio", "hit blocks / matchable blocks of the waiting request"),
    ("log_turn", "turn of the waiting request"),
    ("token_hit_ratio", "hit tokens / prompt tokens of all requests so far, the waiting one included"),
    *((f"held.{queue}", "share of the capacity that unreferenced blocks of the queue take") for queue in QUEUE_NAMES),
)
FEATURES = len(_OF_A_CANDIDATE)


def _entry(name: str, meaning: str) -> Entry:
    return Entry(name, 0, 1, f"ln(1 + {meaning}) / 16" if "log_" in name else meaning)


@dataclass(frozen=True)
class EvictionLayout(Layout):
    """The entries of an observation: the features of each candidate in turn, then what holds for all of them.

    Attributes:
        candidates: k.
        features: what is told of each candidate, in order, as entries without the candidate's number.
        shared: what is told once.
    """

    candidates: int
    features: tuple[Entry, ...]
    shared: tuple[Entry, ...]

    @staticmethod
    def of(candidates: int) -> EvictionLayout:
        """Return the layout for `candidates` candidates."""
        features = tuple(_entry(*named) for named in _OF_A_CANDIDATE)
        shared = tuple(_entry(*named) for named in _SHARED)
        of_each = tuple(
            Entry(f"candidate.{i}.{f.name}", f.low, f.high, f.meaning) for i in range(candidates) for f in features
        )
        return EvictionLayout((*of_each, *shared), candidates, features, shared)

    def split(self, observation: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return views of observations, (..., n): the candidates', (..., k, features), and the shared part."""
        end = self.candidates * len(self.features)
        shape = (*observation.shape[:-1], self.candidates, len(self.features))
        return observation[..., :end].reshape(shape), observation[..., end:]


@kernel(inline="always")
def _log(x):  # type: ignore[no-untyped-def]
    return min(math.log1p(max(x, 0.0)) / SCALE, 1.0)


@kernel(forceinline=True)
def _run(cache, slot):  # type: ignore[no-untyped-def]
    """Blocks that become leaves one after another from a leaf up, all accessed last when it was."""
    blocks = cache.blocks
    access = blocks[slot].access
    identity = blocks[slot].identity
    run = 1
    while run < LONGEST_RUN:
        if blocks[slot].next_copy >= 0 or cache.first[identity] != slot:
            return run
        identity = cache.parent[identity]
        if identity < 0 or cache.children[identity] > 1:
            return run
        slot = cache.first[identity]
        if slot < 0 or blocks[slot].refs > 0 or blocks[slot].next_copy >= 0 or blocks[slot].access != access:
            return run
        run += 1
    return run


@kernel(types.void(types.int64[::1], types.int64, types.float32[::1]))
def observe(handle, block_size, out):  # type: ignore[no-untyped-def]
    """Write the observation of a `SteppedSimulator`, by its handle, to `out`, (n,), in `EvictionLayout`'s order."""
    cache, requests, counters, _, hit_blocks, h = engine_at(handle)
    progress, chosen, _ = waiting_at(h)
    p = progress[0]
    pool = cache.pool[0]
    out[:] = 0.0
    for i in range(p.candidates):
        slot = chosen[i]
        block = cache.blocks[slot]
        of = out[i * FEATURES : (i + 1) * FEATURES]
        # Each request is one access, so that the number of an access tells which request it was.
        last = block.access - 1
        of[0] = 1.0
        of[1] = _log(pool.now - block.time)
        of[2] = _log(float(pool.access - block.access))
        of[3] = _log(float(block.count))
        of[4] = _log(float(block.offset))
        of[5] = _log(float(_run(cache, slot)))
        of[6] = _log(float(requests.turn[last]))
        if requests.turn[last] > 0:
            of[7] = _log(requests.gap_seconds[last])
        of[8] = requests.agentic[last]
        of[9] = requests.ended_for_tool[last]
        of[10] = 1.0 if block.flags & GENERATED else 0.0
        of[11] = 1.0 if block.flags & SHARED else 0.0
        of[12] = 1.0 if block.next_copy >= 0 or cache.first[block.identity] != slot else 0.0
        of[13 + block.queue] = 1.0
        of[13 + NUM_QUEUES + block.token_type] = 1.0
    shared = out[len(chosen) * FEATURES :]
    if p.candidates > 0:
        leaves = 0
        for i in range(cache.heaps[0].occupied):
            leaves += cache.heaps[cache.heaps[i].listed].size
        tokens = requests.prompt_tokens[p.request]
        shared[0] = _log(float(p.needed))
        shared[1] = _log(float(leaves))
        shared[2] = _log(float(tokens))
        shared[3] = hit_blocks[p.request] / max((tokens - 1) // block_size, 1)
        shared[4] = _log(float(requests.turn[p.request]))
    shared[5] = counters.totals[1] / max(counters.totals[0], 1)
    for q in range(NUM_QUEUES):
        shared[6 + q] = cache.held[q] / len(cache.blocks)


assert FEATURES == 13 + NUM_QUEUES + NUM_TOKEN_TYPES
