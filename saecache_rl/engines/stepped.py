"""The simulator, stopping wherever a request needs a victim, so that the choice can be made in Python.

It serves and counts with the very functions of `saecache_rl.engines.serve`; only the choice of victims differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba import types

from saecache_rl.cache.candidates import find_candidates, take_chosen
from saecache_rl.cache.params import PolicyParams
from saecache_rl.cache.policies.queued_lru import QueuedLRU
from saecache_rl.cache.pool import take_free
from saecache_rl.compiled import kernel
from saecache_rl.engines.serve import (
    FUNCTION_WORDS,
    begin_request,
    end_request,
    engine_at,
    insert_taken,
    on_access_at,
    on_evict_at,
    on_release_at,
    prompt_slots,
    slots_at_once,
)
from saecache_rl.engines.simulator import Simulator
from saecache_rl.engines.stats import WindowStats
from saecache_rl.engines.window import window_stats
from saecache_rl.errors import InputError
from saecache_rl.handles import Handle, array_addresses, array_at
from saecache_rl.workloads.sessions import Sessions
from saecache_rl.workloads.trace import Trace

#: Where the serving stands; an array of one.
PROGRESS = np.dtype(
    [
        ("request", "i8"),  # being served; the number of requests when all have been
        ("begun", "i8"),  # 1: it has been matched
        ("hits", "i8"),
        ("goal", "i8"),  # slots to take before the next block is inserted
        ("taken", "i8"),  # slots taken so far
        ("used", "i8"),  # blocks inserted so far
        ("candidates", "i8"),  # leaves to choose from
        ("needed", "i8"),  # slots that the request is known to need yet: its prompt's, then the reply's next one
    ]
)
_progress, _slots = array_at(types.Array(numba.from_dtype(PROGRESS), 1, "C")), array_at(types.int32[::1])
_NOTHING_CHOSEN = -1


@kernel(forceinline=True)
def waiting_at(h):  # type: ignore[no-untyped-def]
    """What follows an engine's words in the handle of a stepped one: progress, candidates, and room for `2 k` slots."""
    h = h[FUNCTION_WORDS:]
    return _progress(h[0], h[1]), _slots(h[2], h[3]), _slots(h[4], h[5])


@kernel(types.int64(types.int64[::1], types.int64, types.int64, types.int64, types.boolean))
def advance(handle, block_size, end, choice, run):  # type: ignore[no-untyped-def]
    """Evict candidate `choice` (none if negative), then serve until a victim is needed or `end` requests are over.

    With `run`, the blocks above the victim of the same last access go too, while room is needed. Returns the number of
    candidates, 0 when no victim is needed any more.
    """
    cache, requests, counters, work, hit_blocks, h = engine_at(handle)
    on_access = on_access_at(h[2], h[3])
    on_release = on_release_at(h[4], h[5])
    on_evict = on_evict_at(h[6], h[7])
    progress, chosen, frontier = waiting_at(h)
    p = progress[0]
    if choice >= 0:
        most = p.goal - p.taken if run else 1
        p.taken += take_chosen(cache, on_evict, chosen[choice], most, work.taken[p.taken :])
    while p.request < end:
        r = p.request
        if p.begun == 0:
            p.hits = begin_request(cache, requests, counters, work.chain, hit_blocks, on_access, block_size, r)
            p.goal = slots_at_once(cache, requests, block_size, r, p.hits)
            p.taken = 0
            p.used = 0
            p.begun = 1
        p.taken += take_free(cache, p.goal - p.taken, work.taken[p.taken :])
        if p.taken < p.goal:
            # How long the reply will be is not known while its request is served.
            p.needed = max(prompt_slots(requests, block_size, r, p.hits) - p.taken, 1)
            p.candidates = find_candidates(cache, chosen, frontier)
            return p.candidates
        p.used = insert_taken(cache, requests, work, r, p.hits, p.used, p.taken)
        need = requests.request_blocks[r] - p.hits
        if p.goal < need:
            p.goal += 1
            continue
        end_request(cache, counters, on_release, work, p.hits + p.used, need, p.used)
        p.begun = 0
        p.request += 1
    p.needed = 0
    p.candidates = 0
    return 0


class SteppedSimulator(Simulator):
    """Serves a trace victim by victim; between two calls of `advance` a request waits for room.

    The pool is laid out for `QueuedLRU`: candidate 0 is always the block that LRU would evict.
    """

    def __init__(
        self,
        trace: Trace,
        num_blocks: int,
        candidates: int,
        run: bool = False,
        sessions: Sessions | None = None,
        continues: npt.NDArray[np.float64] | None = None,
    ) -> None:
        """Lay out an empty cache; `advance` serves up to the first choice.

        Args:
            trace, num_blocks, sessions, continues: as of `Simulator`.
            candidates: k, leaves to choose from.
            run: whether the blocks above a victim that were last accessed with it go too, while room is needed.
        """
        self.run = run
        self._progress = np.zeros(1, PROGRESS)
        self._chosen = np.zeros(candidates, np.int32)
        self._frontier = np.zeros(2 * candidates, np.int32)
        super().__init__(trace, QueuedLRU(), num_blocks, sessions, continues)

    def reset(self) -> None:
        """Empty the cache and go back to the first request."""
        super().reset()
        self._progress[:] = np.zeros(1, PROGRESS)
        for column in self._counters:
            column[...] = 0

    def _make_handle(self) -> Handle:
        extra = array_addresses([self._progress, self._chosen, self._frontier])
        return np.concatenate([super()._make_handle(), np.array(extra, np.int64)])

    @property
    def handle(self) -> Handle:
        """The addresses of everything, for compiled code (`engine_at`, `waiting_at`); they change at `reset`."""
        return self._handle

    @property
    def num_candidates(self) -> int:
        """Leaves to choose from now; 0 before the first `advance` and when all is served."""
        return int(self._progress["candidates"][0])

    @property
    def candidates(self) -> npt.NDArray[np.void]:
        """(n,) BLOCK, copies of the candidates' records, the least recent first."""
        records: npt.NDArray[np.void] = self.cache.blocks[self._chosen[: self.num_candidates]]
        return records

    @property
    def needed(self) -> int:
        """Slots that the waiting request is known to need: its prompt's, then one at a time for its reply."""
        return int(self._progress["needed"][0])

    @property
    def hit_tokens_so_far(self) -> int:
        """Hit tokens of all requests up to the one that waits, that one included."""
        return int(self._counters.totals[1])

    def advance(self, choice: int = _NOTHING_CHOSEN) -> int:
        """Evict candidate number `choice`, or none if negative, and go on to the next choice.

        Returns:
            The number of candidates there; 0 when all requests have been served.
        """
        if choice >= self.num_candidates:
            raise IndexError(f"candidate {choice} of {self.num_candidates}")
        found = advance(self._handle, self.trace.block_size, self.trace.num_requests, choice, self.run)
        self.position = int(self._progress["request"][0])
        if found == 0 and not self.done:
            raise AssertionError(f"request {self.position} found no victim in a pool that is large enough for it")
        return int(found)

    def stats(self) -> WindowStats:
        """What was counted since the first request, the one that waits included; at the end, of the whole trace."""
        return window_stats(
            self._counters,
            self.cache,
            window=0,
            first_request=0,
            requests=self.position + int(self._progress["begun"][0]),
            evicted_before=np.zeros_like(self.cache.evicted),
            sampled_before=0,
        )

    def serve(self, count: int, params: PolicyParams | None = None) -> WindowStats:
        """Refuse: whole windows are what `Simulator` serves.

        Raises:
            InputError: always.
        """
        raise InputError("a SteppedSimulator goes from victim to victim: call advance")

    def state_dict(self) -> dict[str, Any]:
        """Everything that a run has changed, that of the waiting request included."""
        arrays = {**self._waiting(), **self._counters._asdict()}
        return {**super().state_dict(), "waiting": {name: array.copy() for name, array in arrays.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state of the same trace, capacity and number of candidates.

        Raises:
            InputError: the state does not fit.
        """
        super().load_state_dict(state)
        for name, array in {**self._waiting(), **self._counters._asdict()}.items():
            saved = state["waiting"][name]
            if saved.shape != array.shape:
                raise InputError(f"the saved state's {name} does not fit this trace and number of candidates")
            array[...] = saved

    def _waiting(self) -> dict[str, npt.NDArray[Any]]:
        return {
            "progress": self._progress,
            "chosen": self._chosen,
            "request": self.cache.request,
            "chain": self._work.chain,
            "taken": self._work.taken,
        }
