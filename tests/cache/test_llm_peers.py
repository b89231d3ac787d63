"""What each peer made for LLM serving is known for, on small traffic."""

from __future__ import annotations

import numpy as np
import pytest

from saecache_rl.cache.policies.lpc import LPC
from saecache_rl.cache.policies.lru import LRU
from saecache_rl.cache.policies.marconi import Marconi
from saecache_rl.cache.policies.tlru import TailOptimizedLRU
from saecache_rl.cache.policies.workload_aware import LIFE, WorkloadAware
from saecache_rl.cache.policy import Policy
from saecache_rl.engines.simulator import Simulator
from saecache_rl.errors import InputError
from saecache_rl.vocabulary import TokenType
from saecache_rl.workloads.trace import HAS_TOOLS, Trace
from tests.support import TraceBuilder, tiny_trace

BLOCK = 4
Tokens = list[tuple[int, TokenType]]


def prompt(name: int, blocks: int) -> Tokens:
    """Tokens of `blocks` blocks that begin with the same ones for each name."""
    return [(1000 * name + i, TokenType.USER) for i in range(blocks * BLOCK)]


def hits(trace: Trace, policy: Policy, num_blocks: int, continues: list[float] | None = None) -> list[int]:
    column = None if continues is None else np.array(continues)
    simulator = Simulator(trace, policy, num_blocks, continues=column)
    simulator.serve(trace.num_requests)
    return simulator.hit_blocks.tolist()


def test_tlru_gives_away_tails_of_many_and_keeps_the_head_of_the_long_one() -> None:
    builder = TraceBuilder(BLOCK)
    for name, blocks in enumerate([12, 4, 4, 4, 8]):
        builder.request(float(name), [*prompt(name, blocks), (7, TokenType.USER)], [])
    builder.request(9.0, [*prompt(0, 12), *[(8, TokenType.USER)] * 5], [])
    trace = builder.trace()
    assert hits(trace, LRU(), 25)[-1] < 8  # the long one was the oldest
    # 18 tokens may be computed anew: short ones can do without all of theirs, the long one, of 49, without four blocks.
    in_time = TailOptimizedLRU(threshold_tokens=4 * BLOCK + 2, next_prompt_tokens=1)
    assert hits(trace, in_time, 25)[-1] == 8


@pytest.mark.parametrize("threshold", [1, 10**6])
def test_tlru_is_lru_where_everything_or_nothing_is_safe(threshold: int) -> None:
    trace = tiny_trace(0, 300)
    room = 2 * int(trace.request_blocks.max())
    assert hits(trace, TailOptimizedLRU(threshold), room) == hits(trace, LRU(), room)


def test_lpc_keeps_what_goes_on_until_its_time_is_over() -> None:
    def again(seconds: float) -> tuple[int, int]:
        builder = TraceBuilder(BLOCK)
        builder.request(0.0, prompt(0, 4), [])  # goes on, says the predictor
        builder.request(1.0 + seconds, prompt(1, 4), [])  # does not
        builder.request(2.0 + seconds, prompt(2, 4), [])
        builder.request(3.0 + seconds, prompt(0, 4), [])
        builder.request(4.0 + seconds, prompt(1, 4), [])
        found = hits(builder.trace(), LPC(turn_seconds=10.0), 8, [0.9, 0.1, 0.5, 0.5, 0.5])
        return found[3], found[4]

    assert again(0.0) == (3, 0)
    # Log-odds 4.4 apart are worth 44 seconds.
    assert again(42.0) == (3, 0)
    assert again(46.0)[0] == 0


def test_lpc_without_a_predictor_is_lru() -> None:
    trace = tiny_trace(0, 300)
    room = 2 * int(trace.request_blocks.max())
    assert hits(trace, LPC(), room) == hits(trace, LRU(), room)


def test_workload_aware_learns_which_category_comes_back() -> None:
    builder = TraceBuilder(BLOCK)
    now = 0.0
    for i in range(40):  # agents come back after a second, chats never
        builder.request(now, prompt(i, 3), [], flags=HAS_TOOLS)
        builder.request(now + 1.0, prompt(i, 4), [], flags=HAS_TOOLS)
        builder.request(now + 2.0, prompt(100 + i, 3), [])
        now += 10.0
    builder.request(now, prompt(50, 3), [], flags=HAS_TOOLS)
    for i in range(3):
        builder.request(now + 0.1 + i, prompt(200 + i, 3), [])
    builder.request(now + 4.0, prompt(50, 3), [], flags=HAS_TOOLS)
    trace = builder.trace()
    assert hits(trace, LRU(), 7)[-1] == 0
    simulator = Simulator(trace, WorkloadAware(), 7)
    simulator.serve(trace.num_requests)
    assert simulator.hit_blocks[-1] == 2
    learned = simulator.cache.reals[3 : 3 * 33].reshape(32, 3)
    assert learned[16, 1] / learned[16, 2] == pytest.approx(1.0, rel=0.2)  # agents' first turns: after a second
    assert learned[0, 1] == 0.0  # chats
    assert simulator.cache.reals[LIFE] > 0.0


def test_marconi_is_lru_at_alpha_0_and_keeps_the_deep_at_2() -> None:
    trace = tiny_trace(0, 300)
    room = 2 * int(trace.request_blocks.max())
    assert hits(trace, Marconi(), room) == hits(trace, LRU(), room)
    builder = TraceBuilder(BLOCK)
    builder.request(0.0, prompt(0, 10), [])
    for i in range(1, 8):
        builder.request(float(i), prompt(i, 2), [])
    builder.request(8.0, prompt(0, 10), [])
    simulator = Simulator(builder.trace(), Marconi(), 14)
    simulator.serve(9, Marconi().space().start().replace({"alpha": 2.0}))
    assert simulator.hit_blocks[-1] == 9
    assert hits(builder.trace(), Marconi(), 14)[-1] < 9


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "soon", True, None])
def test_impossible_options_are_one_line(value: object) -> None:
    for make in (LPC, TailOptimizedLRU):
        with pytest.raises(InputError) as caught:
            make(value)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)
