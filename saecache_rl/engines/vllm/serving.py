"""What the engine knows of each request, and the agent that learns from them; between vLLM's requests and the cache.

A request *begins* when it is first given blocks, and is *over* when it gives them back for good; a preempted request
only gives them back for a while. Nothing here imports vLLM: it reads the attributes of a request that are named below.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from saecache_rl.cache.params import PolicyParams
from saecache_rl.cache.policy import Policy
from saecache_rl.engines.stats import WindowStats
from saecache_rl.engines.vllm.core import BlockIds, LiveCache, RequestFacts
from saecache_rl.engines.vllm.handle import NO_HINT, NO_REUSE
from saecache_rl.engines.vllm.hints import Hints, read_hints
from saecache_rl.engines.vllm.labels import Labels, Template
from saecache_rl.engines.vllm.nodes import fingerprints_of
from saecache_rl.engines.vllm.sessions import LiveSessions
from saecache_rl.vocabulary import TokenType

if TYPE_CHECKING:
    from saecache_rl.engines.vllm.agent_file import AgentFile

logger = logging.getLogger("vllm.saecache_rl")


@dataclass
class Served:
    """One request, from its first blocks to its last.

    facts: what the cache reads. probability is set by the predictor, if any, before the blocks are given back.
    continues: the probability that a predictor in the worker gave when the prompt was computed; None without one.
    """

    facts: RequestFacts
    hints: Hints
    labels: Labels
    request_id: str
    prompt_token_ids: list[int] | None
    continues: float | None = None


@dataclass(frozen=True)
class Choice:
    """What rules an engine's cache.

    agent: anything with `name`, `policy`, `act`, `observe` (`saecache_rl.agents.Agent`).
    window: requests between two decisions of the agent.
    clock: seconds; a replay sets its own.
    predictor: says of a request that is over how likely its session goes on; None: it does not.
    template: of the chat template's special tokens; None: token types are unknown without hints.
    file: where the agent is saved, if anywhere.
    ended_for_tool: says of a request that is over whether its reply called a tool, in a replay; None: the template's
        tool-call token says it.
    """

    agent: Any
    window: int = 100
    clock: Callable[[], float] = time.monotonic
    predictor: Callable[[Served], float] | None = None
    template: Template | None = None
    ended_for_tool: Callable[[Served], bool] | None = None
    file: AgentFile | None = None


@dataclass
class Counts:
    """What went wrong or was left out, since the engine began."""

    errors: Counter[str] = field(default_factory=Counter)  # by the place where a policy or an agent failed
    fallbacks: int = 0  # choices of victims in vLLM's own order
    ignored_hints: Counter[str] = field(default_factory=Counter)  # by name


class Serving:
    """Joins a `LiveCache`, the sessions, the labels and the agent of one engine."""

    def __init__(self, choice: Choice, num_blocks: int, block_size: int) -> None:
        """Begin with an empty cache of `num_blocks` blocks of `block_size` tokens."""
        self.choice = choice
        self.policy: Policy = choice.agent.policy
        self.live = LiveCache(self.policy, num_blocks, block_size, choice.clock)
        if choice.file is not None:
            choice.file.attach(self.live)
        self.sessions = LiveSessions(num_blocks)
        self.block_size = block_size
        self.served: dict[str, Served] = {}
        self.counts = Counts()
        self.stats = WindowStats.empty()
        self._number = 0
        self._over = 0
        self._listeners: list[Callable[[WindowStats, PolicyParams], None]] = []
        self.live.begin_window(self._act())

    # -- requests

    def begin(self, request: Any) -> Served:
        """The request begins: find its session, its token types and its hints.

        Args:
            request: vLLM's, of which are read: request_id, block_hashes, num_prompt_tokens, prompt_token_ids,
                sampling_params.extra_args, session_id.
        """
        prompt_tokens = int(request.num_prompt_tokens)
        full = prompt_tokens // self.block_size
        sampling = request.sampling_params
        hints = read_hints(None if sampling is None else sampling.extra_args, self.counts.ignored_hints)
        prompt = fingerprints_of(request.block_hashes[:full])
        session_id = hints.session_id
        if session_id is None and isinstance(getattr(request, "session_id", None), str):
            session_id = request.session_id
        known = self.sessions.begin(prompt, prompt_tokens, self.choice.clock(), session_id)
        labels = self._labels(request.prompt_token_ids, hints)
        facts = RequestFacts(
            number=self._number,
            session=known.session,
            turn=0 if hints.session_kind == "single" else known.turn,
            prompt_tokens=prompt_tokens,
            agentic=_agentic(hints, known.was_agentic or labels.has_tools),
            gap_seconds=known.gap_seconds,
            gap_kind=int(known.was_agentic),
            priority=NO_REUSE if hints.no_reuse else NO_HINT if hints.priority is None else hints.priority,
            retention_seconds=hints.retention_seconds or 0.0,
            prompt=prompt,
            types=labels.block_types(0, full, self.block_size),
        )
        self._number += 1
        served = Served(facts, hints, labels, request.request_id, request.prompt_token_ids)
        self.served[request.request_id] = served
        return served

    def _labels(self, prompt_token_ids: list[int] | None, hints: Hints) -> Labels:
        if hints.spans is None:
            labels = Labels(self.choice.template)
            if self.choice.template is not None and prompt_token_ids is not None:
                labels.extend(np.frombuffer(array("i", prompt_token_ids), np.int32))
            return labels
        labels = Labels(None)
        at = 0
        for start, end, kind in hints.spans:
            if start > at:
                labels.begin_part(at, TokenType.UNKNOWN)
            labels.begin_part(start, kind)
            at = end
        return labels

    def insert(self, served: Served, request: Any, blocks: BlockIds, offset: int, before: int) -> None:
        """Blocks of the request, from number `offset` on, got their hashes; see `LiveCache.insert`."""
        end = offset + len(blocks)
        facts = served.facts
        prompt_blocks = len(facts.prompt)
        if end <= prompt_blocks:
            fingerprints, types = facts.prompt[offset:end], facts.types[offset:end]
        else:
            fingerprints = fingerprints_of(request.block_hashes[offset:end])
            self._read_output(served, request, end * self.block_size)
            types = served.labels.block_types(offset, len(blocks), self.block_size)
        self.live.insert(facts, blocks, fingerprints, types, offset, before)

    def _read_output(self, served: Served, request: Any, end: int) -> None:
        """Label the tokens that were generated, up to token `end`."""
        labels, prompt_tokens = served.labels, served.facts.prompt_tokens
        if served.hints.spans is not None:
            return
        if labels.template is None:
            if labels.starts[-1] < prompt_tokens:
                labels.begin_part(prompt_tokens, TokenType.RESPONSE)
            return
        if labels.length < end:
            labels.extend(np.frombuffer(array("i", request.all_token_ids[labels.length : end]), np.int32))

    def pause(self, request: Any) -> Served | None:
        """The request gives its blocks back and will go on later; None if it never began."""
        return self.served.get(request.request_id)

    def predicted(self, probabilities: Mapping[str, float]) -> None:
        """A predictor in the worker says how likely sessions go on, by request; a resumed request keeps the first."""
        for request_id, probability in probabilities.items():
            served = self.served.get(request_id)
            if served is not None and served.continues is None:
                served.continues = probability

    def end(self, request: Any) -> Served | None:
        """The request is over and about to give its blocks back; None if it never began."""
        served = self.served.pop(request.request_id, None)
        if served is None:
            return None
        facts = served.facts
        tokens = int(request.num_tokens)
        facts.output_tokens = tokens - facts.prompt_tokens
        self._read_output(served, request, tokens)
        if self.choice.ended_for_tool is not None:
            facts.ended_for_tool = self.choice.ended_for_tool(served)
        else:
            facts.ended_for_tool = served.labels.calls_tool and facts.output_tokens > 0
        facts.agentic = _agentic(served.hints, facts.agentic or served.labels.has_tools or facts.ended_for_tool)
        prompt_blocks = len(facts.prompt)
        full = (facts.prompt_tokens + max(facts.output_tokens, 1) - 1) // self.block_size
        added = facts.prompt[-1:]
        if full > prompt_blocks:
            added = fingerprints_of(request.block_hashes[prompt_blocks:full])
        self.sessions.end(facts.session, added, facts.agentic)
        if self.choice.predictor is not None and served.hints.session_kind != "single":
            try:
                facts.probability = float(self.choice.predictor(served))
            except Exception as error:
                self.failed("predictor", error)
        return served

    # -- windows

    def after_end(self) -> None:
        """A request is over and has given its blocks back; after the last of a window the agent decides anew."""
        self._over += 1
        if self._over < self.choice.window:
            return
        self._over = 0
        self.stats = self.live.end_window()
        try:
            self.choice.agent.observe(self.stats, self.stats.token_hit_ratio)
        except Exception as error:
            self.failed("agent.observe", error)
        self.live.begin_window(self._act())
        self._keep(lambda file: file.after_window(self.live.params))
        for listen in self._listeners:
            listen(self.stats, self.live.params)

    def close(self) -> None:
        """The engine shuts down."""
        self._keep(lambda file: file.close())

    def _keep(self, act: Callable[[AgentFile], None]) -> None:
        file = self.choice.file
        if file is None:
            return
        try:
            act(file)
        except Exception as error:
            self.failed("checkpoint", error)

    def on_window(self, listen: Callable[[WindowStats, PolicyParams], None]) -> None:
        """Call `listen` after each window with its statistics and the parameters of the next."""
        self._listeners.append(listen)

    def progress(self) -> tuple[int, ...]:
        """Numbers of which one differs whenever something has happened that is counted."""
        counts = self.counts
        return (
            self._number,
            self._over,
            self.live.window,
            self.live.evictions,
            counts.fallbacks,
            counts.errors.total(),
            counts.ignored_hints.total(),
        )

    def _act(self) -> PolicyParams | None:
        """The agent's parameters for the next window; None, so those in force, if it fails."""
        try:
            params: PolicyParams = self.choice.agent.act(self.stats)
            if params.space != self.policy.space():
                raise ValueError(f"parameters of another policy: {params.space.names}")
            return params
        except Exception as error:
            self.failed("agent.act", error)
            return None

    def failed(self, place: str, error: Exception) -> None:
        """Count and log a failure of the policy or of what goes with it; the first of a place with its traceback."""
        self.counts.errors[place] += 1
        count = self.counts.errors[place]
        if count == 1:
            logger.error("saecache_rl: %s failed: %r; the engine goes on", place, error, exc_info=error)
        elif count & (count - 1) == 0:  # 2, 4, 8, …: a policy that always fails must not fill the log
            logger.error("saecache_rl: %s failed %d times, last: %r", place, count, error)


def _agentic(hints: Hints, seen: bool) -> bool:
    """What the client says, else what was seen."""
    return seen if hints.session_kind is None else hints.session_kind == "agentic"
