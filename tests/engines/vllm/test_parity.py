"""The simulator, vLLM's own pool and ours give the same hits and evict the same blocks in the same order."""

from __future__ import annotations

import os
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saecache_rl.cache.policies.saecache import SAECache
from saecache_rl.configured import by_name, make
from saecache_rl.engines.simulator import Simulator
from saecache_rl.engines.vllm.parity import Comparison, compare
from saecache_rl.engines.vllm.replay import Replay
from saecache_rl.vocabulary import TokenType
from saecache_rl.workloads.sessions import lineage
from saecache_rl.workloads.trace import Trace
from tests.cache.strategies import BLOCK, traces
from tests.engines.vllm import support
from tests.support import TraceBuilder, tiny_trace

pytestmark = pytest.mark.live

#: Names of agents; None: LRU against vLLM's own pool.
PEERS = ["fifo", "slru", "s3fifo", "arc", "gdsf", "lhd", "lecar", "tlru", "workload_aware", "marconi", "lpc"]
SIDES = [None, "lru", *PEERS, "unicache", "saecache", "hazard", "adaptive", "adaptive_eager"]
#: vLLM reports evictions as events, or our pool takes its short ways.
EVENTS = pytest.mark.parametrize("events", [True, False], ids=["events", "no events"])


@cache
def _agent(name: str) -> Any:
    target = by_name("agent", name)
    if name == "tlru":  # below the length of the prompts
        target = {**target, "policy": {**target["policy"], "threshold_tokens": 150, "next_prompt_tokens": 20}}
    return make("agent", target)


def agents(name: str | None) -> tuple[Any, Any] | None:
    if name is None:
        return None
    made = deepcopy(_agent(name)), deepcopy(_agent(name))
    for agent in made:
        agent.reset(0)
    return made


def check(trace: Trace, num_blocks: int, name: str | None, window: int = 50, **options: Any) -> Comparison:
    continues = np.random.default_rng(0).uniform(size=trace.num_requests)
    found = compare(trace, num_blocks, agents(name), window, continues, **options)
    assert found.differing == ()
    if name is not None:
        support.check_agreement(found.replay.manager)
    return found


@EVENTS
@pytest.mark.parametrize("name", SIDES)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_mixed_trace(name: str | None, seed: int, events: bool) -> None:
    trace = tiny_trace(seed, 250)
    found = check(trace, int(trace.request_blocks.max() * 2), name, events=events)
    assert found.hit_blocks > 0
    assert found.evictions > 0


@pytest.mark.parametrize("options", [{"tokens": True}, {"at_once": 1}, {"at_once": 5, "tokens": True, "events": False}])
def test_hashes_of_tokens_and_replies_token_by_token_are_the_same(options: dict[str, Any]) -> None:
    trace = tiny_trace(2, 150)
    for name in (None, "saecache"):
        check(trace, int(trace.request_blocks.max() * 2), name, **options)


@EVENTS
@pytest.mark.parametrize("name", SIDES)
@settings(max_examples=40, deadline=None)
@given(trace=traces(max_requests=30), extra=st.integers(0, 8), named=st.booleans())
def test_whole_block_prompts_and_replies_made_twice(
    name: str | None, events: bool, trace: Trace, extra: int, named: bool
) -> None:
    trace = trace if named else trace.without_generated()
    check(trace, int(trace.request_blocks.max()) + extra, name, events=events)


@pytest.mark.parametrize("name", SIDES)
def test_a_whole_block_prompt_with_a_short_reply_in_a_pool_of_its_size(name: str | None) -> None:
    """The reply fills no block, yet needs room for its first tokens, so that even the largest request evicts for it."""
    builder = TraceBuilder(BLOCK)
    prompts = [[(100 * p + i, TokenType.USER) for i in range(8 * BLOCK)] for p in range(2)]
    for turn in range(8):
        prompt = prompts[turn % 3 % 2][: BLOCK * (8 if turn % 2 else 5)]
        for reply in (1, 2, BLOCK):
            builder.request(10.0 * turn + reply, prompt, [(i, TokenType.RESPONSE) for i in range(reply)])
    trace = builder.trace()
    assert trace.request_blocks.tolist()[:6] == [5, 6, 6, 8, 9, 9]
    assert len(trace.generated_blocks) == 0
    found = check(trace, 9, name)
    assert found.evictions > 0


@pytest.mark.parametrize("workload", ["chat", "agentic", "templated"])
def test_a_hundred_requests_of_generated_workloads(workload: str) -> None:
    target = {key: value for key, value in by_name("workload", workload).items() if key != "num_blocks"}
    trace = make("workload", target | {"requests": 100})
    for name in SIDES:
        check(trace, int(trace.request_blocks.max() * 2), name, events=False)


@pytest.mark.skipif(
    "SAECACHE_DATA_DIR" not in os.environ, reason="needs SAECACHE_DATA_DIR, the folder of public traces"
)
@pytest.mark.parametrize("generated", ["none", "unique"])
def test_a_hundred_requests_of_a_public_trace(generated: str) -> None:
    files = sorted(Path(os.environ["SAECACHE_DATA_DIR"]).rglob("*conversation_trace*"))
    if not files:
        pytest.skip("no Mooncake conversation trace in SAECACHE_DATA_DIR")
    target = {**by_name("workload", "mooncake"), "path": str(files[0]), "requests": 100, "generated": generated}
    trace = make("workload", target)
    for name in SIDES:
        check(trace, int(trace.request_blocks.max() * 2), name, events=False)


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
