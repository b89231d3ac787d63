"""The simulator, vLLM's own pool and ours give the same hits and evict the same blocks in the same order."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saecache_rl.cache.policies.lru import LRU
from saecache_rl.cache.policies.saecache import SAECache
from saecache_rl.cache.policies.unicache import UniCache
from saecache_rl.cache.policy import Policy
from saecache_rl.configured import by_name, make
from saecache_rl.engines.simulator import Simulator
from saecache_rl.engines.vllm.recorded import Recorded, victims_by_request
from saecache_rl.engines.vllm.replay import Replay
from saecache_rl.workloads.sessions import lineage
from saecache_rl.workloads.trace import Trace
from tests.cache.strategies import traces
from tests.engines.vllm import support
from tests.support import tiny_trace

pytestmark = pytest.mark.live

SIDES: list[tuple[str, Policy, bool]] = [
    ("vllm's own LRU", LRU(), True),
    ("lru", LRU(), False),
    ("unicache", UniCache(), False),
    ("saecache", SAECache(), False),
]


def compare(trace: Trace, num_blocks: int, policy: Policy, own: bool) -> Replay:
    simulator = Simulator(trace, Recorded(policy, 200_000), num_blocks)
    simulator.serve(trace.num_requests)
    victims = victims_by_request(simulator)
    replay = Replay(trace, num_blocks, None if own else policy, simulator.sessions)
    for r in range(trace.num_requests):
        step = replay.serve(r)
        assert step.hit_blocks == simulator.hit_blocks[r], f"request {r}"
        assert step.evicted == victims[r], f"request {r}"
    return replay


@pytest.mark.parametrize(("name", "policy", "own"), SIDES, ids=[side[0] for side in SIDES])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_mixed_trace(name: str, policy: Policy, own: bool, seed: int) -> None:
    trace = tiny_trace(seed, 250)
    replay = compare(trace, int(trace.request_blocks.max() * 2), policy, own)
    if not own:
        support.check_agreement(replay.manager)


@pytest.mark.parametrize(("name", "policy", "own"), SIDES, ids=[side[0] for side in SIDES])
@settings(max_examples=60, deadline=None)
@given(trace=traces(max_requests=30), extra=st.integers(0, 8))
def test_whole_block_prompts_and_replies_made_twice(
    name: str, policy: Policy, own: bool, trace: Trace, extra: int
) -> None:
    replay = compare(trace, int(trace.request_blocks.max()) + extra, policy, own)
    if not own:
        support.check_agreement(replay.manager)


@pytest.mark.parametrize("workload", ["chat", "agentic", "templated"])
def test_a_hundred_requests_of_generated_workloads(workload: str) -> None:
    target = {key: value for key, value in by_name("workload", workload).items() if key != "num_blocks"}
    trace = make("workload", target | {"requests": 100})
    for policy in (LRU(), SAECache()):
        compare(trace, int(trace.request_blocks.max() * 2), policy, False)


@pytest.mark.skipif(
    "SAECACHE_DATA_DIR" not in os.environ, reason="needs SAECACHE_DATA_DIR, the folder of public traces"
)
def test_a_hundred_requests_of_a_public_trace() -> None:
    files = sorted(Path(os.environ["SAECACHE_DATA_DIR"]).rglob("*conversation_trace*"))
    if not files:
        pytest.skip("no Mooncake conversation trace in SAECACHE_DATA_DIR")
    target = {**by_name("workload", "mooncake"), "path": str(files[0]), "requests": 100}
    trace = make("workload", target)
    for policy in (LRU(), SAECache()):
        compare(trace, int(trace.request_blocks.max() * 2), policy, False)


def test_the_engine_finds_the_sessions_that_the_trace_has_by_lineage() -> None:
    trace = tiny_trace(5, 300)
    replay = Replay(trace, int(trace.request_blocks.max() * 2), SAECache())
    sessions = lineage(trace)
    serving = replay.manager.serving
    found = []
    begin = serving.begin

    def note(request):  # type: ignore[no-untyped-def]
        served = begin(request)
        found.append((served.facts.session, served.facts.turn, served.facts.gap_seconds))
        return served

    serving.begin = note
    for r in range(trace.num_requests):
        replay.serve(r)
    assert [f[0] for f in found] == sessions.session.tolist()
    assert [f[1] for f in found] == sessions.turn.tolist()
    np.testing.assert_array_equal([f[2] for f in found], sessions.gap_seconds)


def test_a_window_counts_what_the_simulator_counts() -> None:
    trace = tiny_trace(3, 200)
    num_blocks = int(trace.request_blocks.max() * 2)
    simulator = Simulator(trace, SAECache(), num_blocks)
    replay = Replay(trace, num_blocks, SAECache(), simulator.sessions, window=50)
    seen = []
    replay.manager.serving.on_window(lambda stats, params: seen.append(stats))
    for r in range(trace.num_requests):
        replay.serve(r)
    expected = [simulator.serve(50) for _ in range(4)]
    for ours, theirs in zip(seen, expected, strict=True):
        assert ours == theirs
