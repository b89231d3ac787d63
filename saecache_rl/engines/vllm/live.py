"""The live engine: a trace's requests through a vLLM in this process, a window of them at a time, timed.

Same members as `saecache_rl.engines.simulator.Simulator`; one by one it gives the same hits, request for request.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from saecache_rl.cache.params import PolicyParams
from saecache_rl.cache.policy import Policy
from saecache_rl.engines.stats import WindowStats
from saecache_rl.engines.vllm.live_settings import LiveSettings
from saecache_rl.engines.vllm.model import Driven, LiveModel
from saecache_rl.engines.vllm.needs import need_vllm
from saecache_rl.engines.vllm.replay import ReplayClock, hints_of
from saecache_rl.engines.vllm.scale import scaled
from saecache_rl.engines.vllm.serving import Choice, Served, Serving
from saecache_rl.engines.vllm.tokens import request_tokens
from saecache_rl.errors import InputError
from saecache_rl.vocabulary import NUM_QUEUES, NUM_TOKEN_TYPES
from saecache_rl.workloads.sessions import Sessions, lineage
from saecache_rl.workloads.trace import ENDED_FOR_TOOL, Trace

#: Requests between two decisions of an agent inside the engine: never, as the windows are made here.
_NEVER = 2**62
#: Longest sleep while no request is due, seconds.
_NAP = 0.05


class LiveEngine:
    """Serves a trace's requests with a model, and measures.

    Attributes:
        trace: the requests as they are replayed (`scale.scaled`).
        policy: which block to evict; None: vLLM as it is, without anything of ours in it.
        num_blocks, sessions, settings: what it was made with.
        position: requests served so far.
        hit_blocks: (R,) blocks of each request that were not computed, 0 where it has not been served.
        ttft_ms: (R,) milliseconds from a request's arrival to its first token, nan where it has not been served.
        served_seconds: wall time spent serving.
    """

    def __init__(
        self,
        trace: Trace,
        policy: Policy | None,
        num_blocks: int,
        sessions: Sessions | None = None,
        continues: npt.NDArray[np.float64] | None = None,
        settings: LiveSettings | None = None,
        model: LiveModel | None = None,
    ) -> None:
        """Prepare; the engine is started by `reset` or the first `serve`.

        Args:
            trace: scaled if it is not yet.
            policy: None: no plug-in.
            num_blocks: capacity, vLLM's null block not counted.
            sessions: of the scaled trace, goes along as hints; None: `lineage`.
            continues: (R,) the predictor's probability that a request's session goes on; None: never.
            settings: of the engine.
            model: one that runs already, to be shared; `close` leaves it running.

        Raises:
            InputError: no vLLM, the policy sees the future, or the largest request does not fit.
        """
        need_vllm()
        self.settings = LiveSettings() if settings is None else settings
        if policy is not None and policy.oracle:
            raise InputError(f"policy {policy.name} needs later requests, which a live engine does not have")
        self.trace = scaled(trace, self.settings.block_size, self.settings.max_model_len)
        trace = self.trace
        length = trace.prompt_tokens.astype(np.int64) + trace.output_tokens
        largest = int(length.argmax())
        self._longest = int(length[largest])
        needed = -(-self._longest // trace.block_size)
        if num_blocks < needed:
            raise InputError(
                f"num_blocks={num_blocks}: request {largest} of {trace.name} has {self._longest} tokens and needs "
                f"{needed} blocks of {trace.block_size} tokens; raise it, or lower engine.max_model_len"
            )
        for name, column in (("sessions", None if sessions is None else sessions.session), ("continues", continues)):
            if column is not None and len(column) != trace.num_requests:
                raise InputError(f"{trace.name}: {name} must have {trace.num_requests} rows, one a request replayed")
        self.policy, self.num_blocks = policy, num_blocks
        self.sessions = lineage(trace) if sessions is None else sessions
        self._continues = continues
        self._model, self._shared = model, model is not None
        if model is not None and (model.num_blocks != num_blocks or model.max_model_len < self._longest):
            raise InputError("the shared model was started for another capacity or shorter requests")
        self._clock = ReplayClock()
        self._serving: Serving | None = None
        self.params = None if policy is None else policy.space().start()
        self._previous = _previous_of_session(self.sessions)
        self._clear()

    def _clear(self) -> None:
        requests = self.trace.num_requests
        self.position, self.window, self.served_seconds = 0, 0, 0.0
        self.hit_blocks = np.zeros(requests, np.int32)
        self.ttft_ms = np.full(requests, np.nan)
        self._evictions = 0
        self._held: npt.NDArray[np.int64] = np.zeros(NUM_QUEUES, np.int64)
        self._history: list[tuple[int, npt.NDArray[np.float64]]] = []
        # Of a loop in which requests overlap: what is to come, what runs, and the time.
        self._due: list[tuple[float, int]] = []
        self._running: dict[str, tuple[int, float]] = {}
        self._now = 0.0
        self._clock.now = 0.0
        closed = self.settings.loop == "closed"
        for r in range(requests):
            if not closed or self._previous[r] < 0:
                heapq.heappush(self._due, (float(self.trace.arrival[r]), r))
        self._next = np.full(requests, -1, np.int64)
        follows = np.flatnonzero(self._previous >= 0)
        self._next[self._previous[follows]] = follows

    # -- as the simulator has it

    def reset(self) -> None:
        """Empty the cache and go back to the first request; starts the engine if it does not run."""
        self._clear()
        if self.policy is None:
            if self._model is None:
                self._model = LiveModel(self.settings, self.num_blocks, self._longest, None)
            self._model.empty()
            return
        choice = Choice(agent=Driven(self.policy), window=_NEVER, clock=self._clock)
        self.params = self.policy.space().start()
        if self._model is None:
            self._model = LiveModel(self.settings, self.num_blocks, self._longest, choice)
        predictor = None if self._continues is None else self._goes_on
        self._serving = self._model.rule(replace(choice, predictor=predictor, ended_for_tool=self._ended_for_tool))

    def _ended_for_tool(self, served: Served) -> bool:
        return bool(self.trace.flags[_number(served.request_id)] & ENDED_FOR_TOOL)

    def _goes_on(self, served: Served) -> float:
        assert self._continues is not None
        return float(self._continues[_number(served.request_id)])

    @property
    def done(self) -> bool:
        """Whether every request has been served."""
        return self.position >= self.trace.num_requests

    @property
    def hit_tokens(self) -> npt.NDArray[np.int64]:
        """(R,) prompt tokens of each request that were not computed, 0 where it has not been served."""
        return self.hit_blocks.astype(np.int64) * self.trace.block_size

    @property
    def evictions(self) -> int:
        """Blocks evicted so far."""
        return self._evictions

    @property
    def held(self) -> npt.NDArray[np.int64]:
        """(4,) unreferenced resident blocks by `Queue`; zeros without a policy."""
        return self._held.copy()

    def held_by_type(self) -> npt.NDArray[np.int64]:
        """(4, 7) resident blocks by `Queue` and `TokenType`; zeros without a policy or a running engine."""
        table = np.zeros((NUM_QUEUES, NUM_TOKEN_TYPES), np.int64)
        if self._serving is not None:
            blocks = self._serving.live.cache.blocks
            blocks = blocks[blocks["identity"] >= 0]
            np.add.at(table, (blocks["queue"], blocks["token_type"]), 1)
        return table

    @property
    def requests_per_second(self) -> float:
        """Requests served over the wall time spent serving them."""
        return self.position / self.served_seconds if self.served_seconds else 0.0

    @property
    def policy_errors(self) -> int:
        """Failures of the policy so far, after each of which vLLM's own order ruled for a while."""
        return 0 if self._serving is None else sum(self._serving.counts.errors.values())

    def serve(self, count: int, params: PolicyParams | None = None) -> WindowStats:
        """Serve up to `count` further requests under `params` (None: as before) and report them.

        In a loop in which requests overlap, those that run at the end of the window go on in the next: the hits of a
        request are in the window in which it is scheduled, its time to the first token in that in which it ends.

        Raises:
            InputError: `count` is below 1, the parameters belong to another policy, or there is no policy.
        """
        if count < 1:
            raise InputError(f"a window has at least 1 request, not {count}")
        if params is not None and (self.policy is None or params.space != self.policy.space()):
            raise InputError("the parameters belong to another policy than the engine's")
        if self._model is None:
            self.reset()
        self.params = self.params if params is None else params
        if self._serving is not None:
            self._serving.live.begin_window(self.params)
        first, evicted = self.position, self._evictions
        goal = min(self.position + count, self.trace.num_requests)
        began = time.perf_counter()
        served = self._one_by_one(goal) if self.settings.loop == "one_by_one" else self._overlapping(goal)
        self.served_seconds += time.perf_counter() - began
        assert self._model is not None
        ttft = float(np.mean(self.ttft_ms[served])) if served else None
        if self._serving is None:
            self._evictions = self._model.evictions
            stats = self._counted(served, self._evictions - evicted)
        else:
            self._evictions = self._serving.live.evictions
            self._held = np.asarray(self._serving.live.held(), np.int64)
            stats = self._serving.live.end_window()
        values = np.empty(0) if self.params is None else self.params.values.copy()
        self._history.append((goal - first, values))
        stats = replace(stats, window=self.window, first_request=first, ttft_ms_mean=ttft)
        self.window += 1
        return stats

    def _counted(self, served: list[int], evictions: int) -> WindowStats:
        """What is known of a window without our pool."""
        trace = self.trace
        return replace(
            WindowStats.empty(),
            requests=len(served),
            time=self._clock.now,
            prompt_tokens=int(trace.prompt_tokens[served].sum(dtype=np.int64)),
            hit_tokens=int(self.hit_tokens[served].sum()),
            matchable_blocks=int(trace.matchable_blocks[served].sum(dtype=np.int64)),
            hit_blocks=int(self.hit_blocks[served].sum(dtype=np.int64)),
            evictions=evictions,
        )

    # -- requests

    def _add(self, r: int) -> str:
        """Hand request `r` to vLLM; return the name that its outputs bear."""
        from vllm import SamplingParams

        from saecache_rl.engines.vllm.forced import REPLY

        assert self._model is not None
        trace = self.trace
        prompt, reply = request_tokens(trace, r, self._model.vocabulary)
        extra: dict[str, Any] = {REPLY: reply}
        if self.policy is not None:
            extra |= hints_of(trace, self.sessions, r)
        params = SamplingParams(
            max_tokens=len(reply), ignore_eos=True, detokenize=False, temperature=0.0, extra_args=extra
        )
        tokens: dict[str, Any] = {"prompt_token_ids": prompt}
        if trace.salt[r]:
            tokens["cache_salt"] = str(trace.salt[r])
        self._model.engine.add_request(str(r), tokens, params)
        return str(r)

    def _first_token(self, r: int, output: Any, seconds: float) -> None:
        self.ttft_ms[r] = 1e3 * seconds
        self.hit_blocks[r] = int(output.num_cached_tokens or 0) // self.trace.block_size

    def _one_by_one(self, goal: int) -> list[int]:
        """Serve requests up to number `goal`, each over before the next begins."""
        assert self._model is not None
        engine = self._model.engine
        begin = self.position
        for r in range(begin, goal):
            self._clock.now = float(self.trace.arrival[r])
            began = time.perf_counter()
            self._add(r)
            while engine.has_unfinished_requests():
                for output in engine.step():
                    if np.isnan(self.ttft_ms[r]):
                        self._first_token(r, output, time.perf_counter() - began)
            self.position = r + 1
        return list(range(begin, goal))

    def _overlapping(self, goal: int) -> list[int]:
        """Serve until `goal` requests are over; the clock stands still between two windows."""
        assert self._model is not None
        engine, speed = self._model.engine, self.settings.speed
        origin = time.perf_counter() - self._now / speed
        served: list[int] = []
        while self.position < goal:
            self._now = self._clock.now = (time.perf_counter() - origin) * speed
            while self._due and self._due[0][0] <= self._now:
                due, r = heapq.heappop(self._due)
                self._running[self._add(r)] = (r, due)
            if not self._running:
                time.sleep(min(max(self._due[0][0] - self._now, 0.0) / speed, _NAP))
                continue
            outputs = engine.step()
            self._now = (time.perf_counter() - origin) * speed
            for output in outputs:
                r, due = self._running[output.request_id]
                if np.isnan(self.ttft_ms[r]):
                    self._first_token(r, output, (self._now - due) / speed)
                if output.finished:
                    del self._running[output.request_id]
                    self.position += 1
                    served.append(r)
                    following = int(self._next[r])
                    if self.settings.loop == "closed" and following >= 0:
                        gap = float(self.trace.arrival[following] - self.trace.arrival[r])
                        heapq.heappush(self._due, (self._now + gap, following))
        return served

    # -- an interrupted run

    def state_dict(self) -> dict[str, Any]:
        """What a run has done: the windows, their parameters, and what was measured; not the blocks themselves."""
        width = len(self._history[0][1]) if self._history else 0
        return {
            "counts": np.array([count for count, _ in self._history], np.int64),
            "params": np.array([values for _, values in self._history], np.float64).reshape(-1, width),
            "ttft_ms": self.ttft_ms.copy(),
            "seconds": self.served_seconds,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Serve again what a run had served, under the same parameters, and go on from there.

        Raises:
            InputError: requests overlap, so that what was served depends on when.
        """
        if len(state["ttft_ms"]) != self.trace.num_requests:
            raise InputError(f"the checkpoint is of a trace with {len(state['ttft_ms'])} requests, not this one")
        counts = np.asarray(state["counts"], np.int64)
        if len(counts) and self.settings.loop != "one_by_one":
            raise InputError(
                f"engine.loop={self.settings.loop}: an interrupted run can't be gone on with, as what a live engine "
                "holds depends on the times of the run; start it anew"
            )
        self.reset()
        for count, values in zip(counts.tolist(), np.asarray(state["params"], np.float64), strict=True):
            self.serve(count, None if self.policy is None else PolicyParams(self.policy.space(), values.copy()))
        self.ttft_ms = np.array(state["ttft_ms"], np.float64)
        self.served_seconds = float(state["seconds"])

    def close(self) -> None:
        """Shut the engine down, unless it is shared; results stay readable."""
        model, self._model, self._serving = self._model, None, None
        if model is not None and not self._shared:
            model.close()


def _number(request_id: str) -> int:
    """Number of a request: vLLM appends a random part to the name that it is given."""
    return int(request_id.split("-", 1)[0])


def _previous_of_session(sessions: Sessions) -> npt.NDArray[np.int64]:
    """(R,) the session's request before each one, -1 for its first."""
    previous = np.full(len(sessions.session), -1, np.int64)
    order = np.argsort(sessions.session, kind="stable")
    follows = np.flatnonzero(sessions.session[order][1:] == sessions.session[order][:-1]) + 1
    previous[order[follows]] = order[follows - 1]
    return previous
