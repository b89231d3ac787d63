"""The simulator engine: a trace through a compiled, vLLM-exact pool under a policy, a window of requests at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from saecache_rl.cache.build import empty_cache, load_cache, save_cache, set_params
from saecache_rl.cache.params import PolicyParams
from saecache_rl.cache.policy import Policy
from saecache_rl.engines.serve import Counters, Requests, Work, make_handle, serve
from saecache_rl.engines.stats import NUM_GAP_KINDS, NUM_OFFSET_BINS, WindowStats
from saecache_rl.engines.window import window_stats
from saecache_rl.errors import InputError
from saecache_rl.handles import Handle
from saecache_rl.vocabulary import NUM_QUEUES, NUM_TOKEN_TYPES
from saecache_rl.workloads.sessions import Sessions, lineage
from saecache_rl.workloads.trace import ENDED_FOR_TOOL, Trace

#: Above this probability a first turn counts as one of several; a predictor that knows nothing yet says 0.5.
CONTINUES = 0.5


def _requests(trace: Trace, sessions: Sessions, continues: npt.NDArray[np.float64] | None) -> Requests:
    """The columns that the compiled loop reads."""
    count = trace.num_requests
    if continues is None:
        probability = np.zeros(count, np.float64)
    elif continues.shape != (count,) or not np.isfinite(continues).all():
        raise InputError(f"{trace.name}: the predictor must give {count} finite probabilities, one a request")
    else:
        probability = np.ascontiguousarray(continues, np.float64)
    # The kind of a session when a gap began is that of its previous request.
    gap_kind = np.zeros(count, np.uint8)
    order = np.argsort(sessions.session, kind="stable")
    follows = np.flatnonzero(sessions.session[order][1:] == sessions.session[order][:-1]) + 1
    gap_kind[order[follows]] = sessions.agentic[order[follows - 1]]
    gap_seconds = np.where(sessions.turn > 0, sessions.gap_seconds, np.nan)
    return Requests(
        arrival=trace.arrival,
        prompt_tokens=trace.prompt_tokens,
        output_tokens=trace.output_tokens,
        request_blocks=trace.request_blocks,
        prompt_start=trace.prompt_start,
        prompt_blocks=trace.prompt_blocks,
        generated_start=trace.generated_start,
        generated_blocks=trace.generated_blocks,
        session=sessions.session,
        turn=sessions.turn,
        agentic=sessions.agentic,
        continues=(probability > CONTINUES).astype(np.uint8),
        probability=probability,
        ended_for_tool=((trace.flags & ENDED_FOR_TOOL) != 0).astype(np.uint8),
        gap_seconds=gap_seconds,
        gap_kind=gap_kind,
    )


@dataclass(frozen=True)
class _Mark:
    """Running totals at a window's start."""

    evicted: npt.NDArray[np.int64]
    sampled: int


class Simulator:
    """Serves a trace's requests in order of arrival, each over before the next comes (clock `instant`).

    Attributes:
        trace, policy, num_blocks, sessions: what it was made with.
        position: number of the next request.
        hit_blocks: (R,) hits of each request served so far, 0 beyond.
    """

    def __init__(
        self,
        trace: Trace,
        policy: Policy,
        num_blocks: int,
        sessions: Sessions | None = None,
        continues: npt.NDArray[np.float64] | None = None,
    ) -> None:
        """Lay out an empty cache.

        Args:
            trace: the requests.
            policy: which block to evict.
            num_blocks: capacity; at least the blocks of the trace's largest request.
            sessions: which requests form a session; None: `lineage`, what an engine sees by itself.
            continues: (R,) the predictor's probability that a request's session goes on; None: never.

        Raises:
            InputError: the largest request does not fit, or `continues` is not as described.
        """
        largest = int(trace.request_blocks.argmax())
        if num_blocks < trace.request_blocks[largest]:
            raise InputError(
                f"num_blocks is {num_blocks}, but request {largest} of {trace.name} alone needs "
                f"{trace.request_blocks[largest]} blocks of {trace.block_size} tokens; raise num_blocks or cut prompts "
                "with workload.max_prompt_tokens"
            )
        self.trace = trace
        self.policy = policy
        self.num_blocks = num_blocks
        self.sessions = lineage(trace) if sessions is None else sessions
        self.hit_blocks = np.zeros(trace.num_requests, np.int32)
        self._requests = _requests(trace, self.sessions, continues)
        self._functions = policy.functions()
        self._future = policy.foresee(trace) if policy.oracle else None
        longest = int((np.diff(trace.prompt_start) + np.diff(trace.generated_start)).max())
        room = int(trace.request_blocks.max()) + 1
        self._work = Work(
            chain=np.zeros(longest + 1, np.int32),
            taken=np.zeros(room, np.int32),
            slots=np.zeros(num_blocks + 64, np.int32),
            scores=np.zeros(num_blocks + 64, np.float64),
        )
        self._counters = Counters(
            totals=np.zeros(4, np.int64),
            queues=np.zeros((3, NUM_QUEUES), np.int64),
            types=np.zeros((3, NUM_TOKEN_TYPES), np.int64),
            offsets=np.zeros((2, NUM_OFFSET_BINS), np.int64),
            gaps=np.zeros((3, NUM_GAP_KINDS), np.float64),
        )
        self.reset()

    def reset(self) -> None:
        """Empty the cache and go back to the first request, with the policy's start parameters."""
        trace = self.trace
        self.cache = empty_cache(
            self.policy,
            self.num_blocks,
            trace.block_size,
            parent=trace.parent,
            offset=trace.offset,
            token_type=trace.token_type,
            future=None if self._future is None else self._future[0],
        )
        if self._future is not None:
            self.cache.ints[: len(self._future[1])] = self._future[1]
        self._handle = self._make_handle()
        self.params = self.policy.space().start()
        self.position = 0
        self.window = 0
        self.hit_blocks[:] = 0

    def _make_handle(self) -> Handle:
        return make_handle(self.cache, self._requests, self._counters, self._work, self.hit_blocks, self._functions)

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the addresses, which hold in one process for one set of arrays."""
        return {name: value for name, value in self.__dict__.items() if name != "_handle"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._handle = self._make_handle()

    @property
    def done(self) -> bool:
        """Whether every request has been served."""
        return self.position >= self.trace.num_requests

    @property
    def hit_tokens(self) -> npt.NDArray[np.int64]:
        """(R,) hit tokens of each request served so far, 0 beyond."""
        return self.hit_blocks.astype(np.int64) * self.trace.block_size

    @property
    def evictions(self) -> int:
        """Blocks evicted so far."""
        return int(self.cache.pool["evictions"][0])

    @property
    def held(self) -> npt.NDArray[np.int64]:
        """(4,) resident blocks by `Queue`."""
        held: npt.NDArray[np.int64] = self.cache.held.copy()
        return held

    def held_by_type(self) -> npt.NDArray[np.int64]:
        """(4, 7) resident blocks by `Queue` and `TokenType`."""
        blocks = self.cache.blocks[self.cache.blocks["identity"] >= 0]
        table = np.zeros((NUM_QUEUES, NUM_TOKEN_TYPES), np.int64)
        np.add.at(table, (blocks["queue"], blocks["token_type"]), 1)
        return table

    def serve(self, count: int, params: PolicyParams | None = None) -> WindowStats:
        """Serve up to `count` further requests under `params` (None: as before) and report them.

        Raises:
            InputError: `count` is below 1, or the parameters belong to another policy.
        """
        if count < 1:
            raise InputError(f"a window has at least 1 request, not {count}")
        if params is not None:
            set_params(self.cache, self.policy, params)
            self.params = params
        begin, end = self.position, min(self.position + count, self.trace.num_requests)
        for column in self._counters:
            column[...] = 0
        mark = _Mark(self.cache.evicted.copy(), int(self.cache.pool["sampled"][0]))
        served = serve(self._handle, self.trace.block_size, begin, end)
        if served != end - begin:
            raise AssertionError(f"request {begin + served} found no victim in a pool that is large enough for it")
        self.position = end
        stats = window_stats(
            self._counters,
            self.cache,
            window=self.window,
            first_request=begin,
            requests=end - begin,
            evicted_before=mark.evicted,
            sampled_before=mark.sampled,
        )
        self.window += 1
        return stats

    def state_dict(self) -> dict[str, Any]:
        """Everything that a run has changed, as arrays and numbers."""
        return {
            "cache": save_cache(self.cache),
            "hit_blocks": self.hit_blocks.copy(),
            "params": self.params.values.copy(),
            "position": self.position,
            "window": self.window,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state of the same trace, policy and capacity.

        Raises:
            InputError: the state does not fit.
        """
        if state["hit_blocks"].shape != self.hit_blocks.shape:
            raise InputError(f"the checkpoint is of a trace with {len(state['hit_blocks'])} requests, not this one")
        load_cache(self.cache, state["cache"])
        self.params = PolicyParams(self.policy.space(), np.array(state["params"], np.float64))
        set_params(self.cache, self.policy, self.params)
        self.cache.pool["version"] = state["cache"]["pool"]["version"]
        self.hit_blocks[:] = state["hit_blocks"]
        self.position = int(state["position"])
        self.window = int(state["window"])
