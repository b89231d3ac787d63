"""A conformance suite that the author of an agent inherits; needs pytest only to be collected.

class TestMine(AgentConformance):
    def make(self) -> Agent:
        return Mine(name="mine", policy=SAECache())
"""

from __future__ import annotations

import io
import json
import pickle
from dataclasses import fields
from typing import Any

import numpy as np

from saecache_rl.agents.base import Agent
from saecache_rl.cache.params import PolicyParams
from saecache_rl.engines.stats import NUM_GAP_KINDS, NUM_OFFSET_BINS, WindowStats
from saecache_rl.vocabulary import NUM_QUEUES, NUM_TOKEN_TYPES


def random_stats(generator: np.random.Generator, window: int, requests: int = 100, block_size: int = 16) -> WindowStats:
    """Draw statistics as an engine could report them: parts add up to their wholes; some queues and types are empty."""

    def split(whole: int, parts: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        shares = generator.dirichlet(np.full(parts, 0.5))
        return generator.multinomial(whole, shares).astype(np.int64)

    def part(whole: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.int64]]:
        return generator.binomial(whole, generator.random(whole.shape)).astype(np.int64)

    accesses = split(int(generator.integers(requests, 50 * requests)), NUM_TOKEN_TYPES)
    hits, evictions = part(accesses), int(generator.integers(0, 10 * requests))
    matchable, hit_blocks = int(accesses.sum()), int(hits.sum())
    type_evictions, queue_evictions = split(evictions, NUM_TOKEN_TYPES), split(evictions, NUM_QUEUES)
    offset_accesses = split(matchable, NUM_OFFSET_BINS)
    gap_count = generator.integers(0, requests // 2, NUM_GAP_KINDS).astype(np.int64)
    logs = [generator.normal(2.0, 1.0, count) for count in gap_count]
    stats = WindowStats(
        window=window,
        first_request=window * requests,
        requests=requests,
        time=60.0 * (window + 1),
        prompt_tokens=matchable * block_size + requests,
        hit_tokens=hit_blocks * block_size,
        matchable_blocks=matchable,
        hit_blocks=hit_blocks,
        evictions=evictions,
        queue_hits=split(hit_blocks, NUM_QUEUES),
        queue_ghost_misses=part(queue_evictions),
        queue_evictions=queue_evictions,
        queue_held=split(4000, NUM_QUEUES).astype(np.float64),
        type_accesses=accesses,
        type_hits=hits,
        type_ghost_misses=part(type_evictions),
        type_evictions=type_evictions,
        offset_accesses=offset_accesses,
        offset_hits=part(offset_accesses),
        gap_count=gap_count,
        gap_log_sum=np.array([x.sum() for x in logs]),
        gap_log_square_sum=np.array([(x * x).sum() for x in logs]),
    )
    for field in fields(stats):
        value = getattr(stats, field.name)
        if isinstance(value, np.ndarray):
            value.setflags(write=False)
    return stats


class AgentConformance:
    """What every agent must show. Subclasses give `make`."""

    windows = 30

    def make(self) -> Agent:
        """Return a new agent, always of the same configuration."""
        raise NotImplementedError

    def run(self, agent: Agent, seed: int, windows: int, last: WindowStats | None = None) -> list[PolicyParams]:
        """Drive the agent over made-up windows; the same seed makes the same windows."""
        generator = np.random.default_rng(seed)
        stats, chosen = last or WindowStats.empty(), []
        for window in range(windows):
            chosen.append(agent.act(stats))
            stats = random_stats(generator, window)
            agent.observe(stats, stats.token_hit_ratio)
        return chosen

    def start(self, agent: Agent) -> PolicyParams:
        """The first window's parameters; an agent that is configured with others overrides this."""
        return agent.policy.space().start()

    def test_starts_at_the_start_and_stays_within_bounds(self) -> None:
        """The first parameters are the start values; all later ones are finite and within bounds."""
        agent = self.make()
        agent.reset(0)
        space = agent.policy.space()
        assert agent.name, "an agent has a name"
        chosen = self.run(agent, 0, self.windows)
        assert chosen[0].as_dict() == self.start(agent).as_dict(), "the first window is served under the start values"
        for params in chosen:
            assert np.isfinite(params.values).all(), f"not finite: {params.as_dict()}"
            assert (params.values >= space.low).all(), f"below its bound: {params.as_dict()}"
            assert (params.values <= space.high).all(), f"above its bound: {params.as_dict()}"

    def test_empty_windows_leave_finite_parameters(self) -> None:
        """Windows in which nothing happened, first or in the middle, do no harm."""
        agent = self.make()
        agent.reset(0)
        for _ in range(3):
            agent.observe(WindowStats.empty(), 0.0)
        self.run(agent, 1, 5)
        idle = WindowStats(**{**_columns(WindowStats.empty()), "window": 5, "requests": 10, "prompt_tokens": 10})
        for _ in range(60):
            agent.observe(idle, 0.0)
            assert np.isfinite(agent.act(idle).values).all(), "an idle window made a parameter infinite or NaN"

    def test_same_seed_same_run(self) -> None:
        """Two agents of one seed, and one agent reset to it, choose the same to the bit."""
        first, second = self.make(), self.make()
        first.reset(7)
        second.reset(7)
        expected = self.run(first, 3, self.windows)
        assert_equal(self.run(second, 3, self.windows), expected, "two agents of one seed")
        second.reset(7)
        assert_equal(self.run(second, 3, self.windows), expected, "an agent that was reset")

    def test_a_saved_agent_continues_to_the_bit(self) -> None:
        """A fresh agent that loads a state, through JSON and .npz, goes on as the one that saved it."""
        agent, other = self.make(), self.make()
        agent.reset(5)
        self.run(agent, 3, 10)
        saved = agent.state_dict()
        state = through_files(saved)
        expected = self.run(agent, 4, self.windows)
        other.reset(99)
        other.load_state_dict(state)
        assert_equal(self.run(other, 4, self.windows), expected, "an agent that was loaded")
        other.load_state_dict(saved)
        assert_equal(self.run(other, 4, self.windows), expected, "the state was no snapshot: it moved with the agent")

    def test_pickled_agent_continues_to_the_bit(self) -> None:
        """Agents travel between processes."""
        agent = self.make()
        agent.reset(5)
        self.run(agent, 3, 10)
        copy = pickle.loads(pickle.dumps(agent))
        assert_equal(self.run(copy, 4, self.windows), self.run(agent, 4, self.windows), "a pickled agent")

    def test_state_does_not_grow(self) -> None:
        """Memory is bounded: the state is as large after many windows as after some."""
        agent = self.make()
        agent.reset(0)
        self.run(agent, 0, 60)
        before = size_of(agent.state_dict())
        self.run(agent, 1, 60)
        assert size_of(agent.state_dict()) == before, "the state has grown"


def _columns(stats: WindowStats) -> dict[str, Any]:
    return {field.name: getattr(stats, field.name) for field in fields(stats)}


def assert_equal(actual: list[PolicyParams], expected: list[PolicyParams], who: str) -> None:
    """Fail unless two runs chose the same parameters to the bit."""
    for window, (one, other) in enumerate(zip(actual, expected, strict=True)):
        assert one.values.tobytes() == other.values.tobytes(), (
            f"{who}: window {window} differs: {one.as_dict()} instead of {other.as_dict()}"
        )


def through_files(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state as it comes back from JSON and .npz; fail where a value fits neither."""
    arrays: dict[str, Any] = {}

    def flatten(value: Any, place: str) -> Any:
        if isinstance(value, dict):
            assert all(isinstance(key, str) for key in value), f"{place}: a key is no text"
            return {key: flatten(item, f"{place}.{key}") for key, item in value.items()}
        if isinstance(value, list):
            return [flatten(item, f"{place}[{i}]") for i, item in enumerate(value)]
        if isinstance(value, np.ndarray):
            arrays[f"array{len(arrays)}"] = value
            return {"array": f"array{len(arrays) - 1}"}
        assert value is None or type(value) in (bool, int, float, str), f"{place} is a {type(value).__name__}"
        return value

    text = json.dumps(flatten(state, "state"))
    file = io.BytesIO()
    np.savez(file, **arrays)
    file.seek(0)
    with np.load(file, allow_pickle=False) as loaded:

        def restore(value: Any) -> Any:
            if isinstance(value, dict):
                return loaded[value["array"]] if set(value) == {"array"} else {k: restore(v) for k, v in value.items()}
            return [restore(item) for item in value] if isinstance(value, list) else value

        restored: dict[str, Any] = restore(json.loads(text))
    return restored


def size_of(value: Any) -> int:
    """Count the numbers and texts in a state."""
    if isinstance(value, dict):
        return sum(size_of(item) for item in value.values())
    if isinstance(value, list):
        return sum(size_of(item) for item in value)
    return int(value.size) if isinstance(value, np.ndarray) else 1
