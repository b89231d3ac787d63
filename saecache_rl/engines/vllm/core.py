"""A live cache: the simulator's pool and policies, driven by vLLM's block ids, one crossing into compiled code a call.

It knows nothing of vLLM's objects. vLLM matches, counts references and keeps the queue of free blocks; this says which
blocks to take next, and counts what a window of requests saw.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from saecache_rl.cache.build import empty_cache, set_params
from saecache_rl.cache.layout import HEAP, ON_ACCESS, ON_EVICT, ON_RELEASE, SCORE
from saecache_rl.cache.params import PolicyParams
from saecache_rl.cache.policy import Policy, no_access
from saecache_rl.engines.serve import DEEPEST_DECAY, Counters
from saecache_rl.engines.simulator import CONTINUES
from saecache_rl.engines.stats import NUM_GAP_KINDS, NUM_OFFSET_BINS, WindowStats
from saecache_rl.engines.vllm import admit, give_back, repair
from saecache_rl.engines.vllm.handle import CALL, NO_HINT, Work
from saecache_rl.engines.vllm.nodes import UNUSED, Fingerprints, make_nodes
from saecache_rl.engines.vllm.retention import make_retention, score_with_hints, score_words
from saecache_rl.engines.window import window_stats
from saecache_rl.errors import InputError
from saecache_rl.handles import array_addresses, function_addresses
from saecache_rl.vocabulary import NUM_QUEUES, NUM_TOKEN_TYPES

Types = npt.NDArray[np.uint8]
BlockIds = npt.NDArray[np.int32]


@dataclass(slots=True)
class RequestFacts:
    """What is known of one request; `LiveCache` reads it, whoever serves requests fills it in.

    prompt: (n,) fingerprints of the prompt's full blocks; types: (n,) their token types.
    probability: that the session sends another request, says the predictor.
    gap_seconds: since the session's previous request, nan at turn 0; gap_kind: 1 if the session was agentic then.
    priority: 0 to 99 with `retention_seconds`; -1: its blocks will not be used again; NO_HINT.
    access: number of its access, given by `LiveCache.access`.
    """

    number: int = -1
    session: int = -1
    turn: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    agentic: bool = False
    probability: float = 0.0
    ended_for_tool: bool = False
    gap_seconds: float = float("nan")
    gap_kind: int = 0
    priority: int = NO_HINT
    retention_seconds: float = 0.0
    prompt: Fingerprints = field(default_factory=lambda: np.empty(0, np.int64))
    types: Types = field(default_factory=lambda: np.empty(0, np.uint8))
    access: int = -1


class Totals(NamedTuple):
    """Blocks counted since the cache was made: (4,) by `Queue` and (7,) by `TokenType`, see `WindowStats`."""

    queue_hits: npt.NDArray[np.int64]
    queue_evictions: npt.NDArray[np.int64]
    type_accesses: npt.NDArray[np.int64]
    type_hits: npt.NDArray[np.int64]
    type_evictions: npt.NDArray[np.int64]


#: For blocks that are given back by nobody that is known.
NOBODY = RequestFacts()


def _ids(blocks: Iterable[int]) -> BlockIds:
    return np.fromiter(blocks, np.int32)


class LiveCache:
    """Slots of one vLLM block pool under one policy.

    Attributes:
        policy, num_blocks, block_size: what it was made with.
        clock: seconds; the pool's time, which never falls whatever the clock does.
        params: the parameters in force.
    """

    def __init__(
        self,
        policy: Policy,
        num_blocks: int,
        block_size: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Lay out an empty cache.

        Args:
            policy: which block to evict.
            num_blocks: vLLM's blocks less its null block.
            block_size: tokens in a block.
            clock: seconds, not negative.

        Raises:
            InputError: the policy sees the future.
        """
        if policy.oracle:
            raise InputError(f"policy {policy.name} needs later requests; a live engine has none")
        self.policy, self.num_blocks, self.block_size, self.clock = policy, num_blocks, block_size, clock
        self._functions = policy.functions()
        self._counters = Counters(
            totals=np.zeros(4, np.int64),
            queues=np.zeros((3, NUM_QUEUES), np.int64),
            types=np.zeros((3, NUM_TOKEN_TYPES), np.int64),
            offsets=np.zeros((2, NUM_OFFSET_BINS), np.int64),
            gaps=np.zeros((3, NUM_GAP_KINDS), np.float64),
        )
        self._work = Work(
            chain=np.zeros(num_blocks + 1, np.int32),
            taken=np.zeros(num_blocks + 1, np.int32),
            slots=np.zeros(num_blocks + 64, np.int32),
            scores=np.zeros(num_blocks + 64, np.float64),
            call=np.zeros(1, CALL),
        )
        # Of the windows before this one.
        self._queue_hits = np.zeros(NUM_QUEUES, np.int64)
        self._type_counts = np.zeros((2, NUM_TOKEN_TYPES), np.int64)
        self.window = 0
        self.requests_in_window = 0
        self._first_request = 0
        self.params = policy.space().start()
        self._make()
        self._mark()

    def _make(self) -> None:
        policy, num_blocks = self.policy, self.num_blocks
        nodes, count = make_nodes(num_blocks)
        rows = count + num_blocks  # above the nodes, numbers for what a request misses
        score = function_addresses(self._functions.score, SCORE)
        cache = empty_cache(
            policy,
            num_blocks,
            self.block_size,
            parent=np.full(rows, UNUSED, np.int32),
            offset=np.zeros(rows, np.int32),
            token_type=np.zeros(rows, np.uint8),
            fingerprint=np.zeros(rows, np.int64),
            future=score_words(score),
        )
        heaps = np.concatenate([cache.heaps, np.zeros(1, HEAP)])
        heaps[-1]["ordered"], heaps[-1]["head"], heaps[-1]["now"] = 1, -1, -1.0
        self.cache = cache._replace(heaps=heaps, arena=np.zeros(len(cache.arena) + 64, np.int32))
        self._nodes, self._retention = nodes, make_retention(num_blocks)
        set_params(self.cache, policy, self.params)
        words = array_addresses([*self.cache, *nodes, *self._retention, *self._counters, *self._work]) + score
        for function, signature in (
            (self._functions.on_access, ON_ACCESS),
            (self._functions.on_release, ON_RELEASE),
            (self._functions.on_evict, ON_EVICT),
            (score_with_hints, SCORE),
        ):
            words += function_addresses(function, signature)
        words.append(int(self._functions.on_access is not no_access))
        self._handle = np.array(words, np.int64)

    # -- what vLLM's pool does

    def _call(self, facts: RequestFacts, final: bool = False) -> None:
        self._work.call[0] = (
            facts.number,
            facts.session,
            facts.turn,
            facts.prompt_tokens,
            facts.output_tokens,
            len(facts.prompt),
            facts.agentic,
            facts.probability > CONTINUES,
            facts.ended_for_tool,
            facts.access,
            max(facts.prompt_tokens - 1, 0) // self.block_size,
            facts.gap_kind,
            facts.priority,
            final,
            self.clock(),
            facts.gap_seconds,
            facts.retention_seconds,
            facts.probability,
        )

    def access(self, facts: RequestFacts, blocks: BlockIds) -> None:
        """A request is scheduled for the first time; it matched `blocks`, first to last."""
        self._call(facts)
        facts.access = int(admit.access(self._handle, blocks, facts.prompt, facts.types, self.block_size))
        self.requests_in_window += 1

    def reference(self, blocks: BlockIds) -> None:
        """Blocks are referenced again without an access: a resumed request, a pin."""
        admit.reference(self._handle, blocks)

    def take(self, need: int) -> list[int]:
        """Choose and take `need` blocks: those without a hash, then victims. Fewer only if there are no more."""
        count = admit.take_blocks(self._handle, need, self.clock())
        taken: list[int] = self._work.taken[:count].tolist()
        return taken

    def insert(
        self, facts: RequestFacts, blocks: BlockIds, fingerprints: Fingerprints, types: Types, offset: int, before: int
    ) -> None:
        """Blocks of a request got their hashes; they follow its block `before` (0: none), from `offset` on."""
        self._call(facts)
        prompt_blocks = facts.prompt_tokens // self.block_size
        give_back.insert_blocks(self._handle, blocks, fingerprints, types, offset, before, prompt_blocks)

    def release(self, facts: RequestFacts, blocks: BlockIds, final: bool) -> None:
        """A request gives blocks back, the deepest first; `final` if it is over."""
        self._call(facts, final)
        give_back.release_blocks(self._handle, blocks)

    def drop(self, blocks: Iterable[int]) -> None:
        """The hashes of blocks are gone."""
        give_back.drop_hashes(self._handle, _ids(blocks))

    def reset(self, order: list[int]) -> None:
        """No block has a hash or a reference any more; `order` is vLLM's queue of free ones."""
        pool, evicted, learned = self.cache.pool[0].copy(), self.cache.evicted, self.learned
        self._make()
        self.cache.evicted[:] = evicted
        self.teach(learned)
        for name in ("now", "access", "release", "version", "evictions", "sampled", "random", "deepest"):
            self.cache.pool[name] = pool[name]
        self.cache.pool["version"] += 1
        self._mark()
        repair.set_free(self._handle, _ids(order))

    def repair(self, hashed: Types, refs: npt.NDArray[np.int32], order: list[int]) -> npt.NDArray[np.int32]:
        """Make all links anew after an error.

        Args:
            hashed: (N,) 1 where vLLM's block id less 1 has a hash.
            refs: (N,) vLLM's reference counts.
            order: vLLM's queue of free blocks.

        Returns:
            Ids of blocks whose hash is unknown here, which vLLM has to drop.
        """
        by_access = np.argsort(self.cache.blocks["access"], kind="stable").astype(np.int32)
        repair.restore(self._handle, hashed, refs, by_access)
        known = self.cache.blocks["identity"] >= 0
        lost: npt.NDArray[np.int32] = (np.flatnonzero((hashed != 0) & ~known) + 1).astype(np.int32)
        repair.set_free(self._handle, _ids(b for b in order if not known[b - 1]))
        return lost

    @property
    def learned(self) -> npt.NDArray[np.float64]:
        """What the policy itself has learned (`Policy.learns`); empty if it does not."""
        reals: npt.NDArray[np.float64] = self.cache.reals
        return reals if self.policy.learns else reals[:0]

    def teach(self, learned: npt.NDArray[np.float64]) -> None:
        """Go on from what another cache of the same policy has `learned`."""
        self.learned[:] = learned

    # -- windows

    @property
    def evictions(self) -> int:
        """Blocks evicted so far."""
        return int(self.cache.pool["evictions"][0])

    def _mark(self) -> None:
        self._evicted_before = self.cache.evicted.copy()
        self._sampled_before = int(self.cache.pool["sampled"][0])

    def begin_window(self, params: PolicyParams | None = None) -> None:
        """Begin a window of requests, under `params` if given.

        Raises:
            InputError: the parameters belong to another policy.
        """
        if params is not None:
            set_params(self.cache, self.policy, params)
            self.params = params
        self._queue_hits += self._counters.queues[0]
        self._type_counts += self._counters.types[:2]
        give_back.begin_window(self._handle, DEEPEST_DECAY)
        self._first_request += self.requests_in_window
        self.requests_in_window = 0
        self._mark()

    def end_window(self) -> WindowStats:
        """What the window since `begin_window` saw."""
        stats = window_stats(
            self._counters,
            self.cache,
            window=self.window,
            first_request=self._first_request,
            requests=self.requests_in_window,
            evicted_before=self._evicted_before,
            sampled_before=self._sampled_before,
        )
        self.window += 1
        return stats

    def totals(self) -> Totals:
        """What was counted so far, this window included."""
        accesses, hits = self._type_counts + self._counters.types[:2]
        evicted = self.cache.evicted.copy()
        return Totals(
            self._queue_hits + self._counters.queues[0], evicted[:NUM_QUEUES], accesses, hits, evicted[NUM_QUEUES:]
        )

    def held(self) -> npt.NDArray[Any]:
        """(4,) unreferenced resident blocks by `Queue`."""
        return np.asarray(self.cache.held).copy()
