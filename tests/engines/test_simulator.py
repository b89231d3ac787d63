"""The simulator as a user meets it: bursts, windows, saved states, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from saecache_rl.cache import victims
from saecache_rl.cache.layout import ON_RELEASE, SCORE
from saecache_rl.cache.policies.lru import LRU
from saecache_rl.cache.policies.queued_lru import QueuedLRU
from saecache_rl.cache.policies.saecache import SAECache
from saecache_rl.cache.policies.unicache import UniCache
from saecache_rl.cache.policy import Functions, Policy
from saecache_rl.compiled import kernel
from saecache_rl.engines.simulator import Simulator
from saecache_rl.engines.stats import WindowStats
from saecache_rl.errors import InputError
from saecache_rl.vocabulary import Queue, TokenType
from saecache_rl.workloads.sessions import find_sessions
from saecache_rl.workloads.trace import Trace
from tests.cache.test_victims import POLICIES
from tests.support import TraceBuilder, tiny_trace

BLOCK = 16


def burst_trace() -> Trace:
    """A 64-block system prompt used by 50 requests, 80 one-off prompts of 50 blocks, the system prompt again."""
    builder = TraceBuilder(BLOCK)
    fresh = iter(range(10**6, 10**9))
    system = [(token, TokenType.SYSTEM) for token in range(64 * BLOCK)]

    def user(tokens: int) -> list[tuple[int, TokenType]]:
        return [(next(fresh), TokenType.USER) for _ in range(tokens)]

    def reply() -> list[tuple[int, TokenType]]:
        return [(next(fresh), TokenType.RESPONSE) for _ in range(8)]

    for i in range(50):
        builder.request(float(i), system + user(40), reply())
    for i in range(80):
        builder.request(50.0 + i, user(50 * BLOCK), reply())
    builder.request(130.0, system + user(40), reply())
    return builder.trace()


def test_a_burst_of_one_off_prompts_spares_the_system_prompt() -> None:
    trace = burst_trace()
    hits = {}
    for policy in (LRU(), SAECache()):
        simulator = Simulator(trace, policy, 2048)
        while not simulator.done:
            simulator.serve(10)
        hits[policy.name] = int(simulator.hit_blocks[-1])
    assert hits["lru"] == 0
    assert hits["saecache"] >= 60


@pytest.fixture(scope="module")
def trace() -> Trace:
    return tiny_trace(seed=1, requests=400)


def capacity(trace: Trace) -> int:
    return 3 * int(trace.request_blocks.max())


def run(simulator: Simulator, window: int) -> list[WindowStats]:
    stats = []
    while not simulator.done:
        stats.append(simulator.serve(window))
    return stats


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name)
def test_windows_add_up_to_what_was_hit(policy: Policy, trace: Trace) -> None:
    simulator = Simulator(trace, policy, capacity(trace))
    stats = run(simulator, 37)
    assert sum(s.hit_blocks for s in stats) == simulator.hit_blocks.sum() > 0
    assert sum(s.hit_tokens for s in stats) == simulator.hit_tokens.sum()
    assert sum(s.prompt_tokens for s in stats) == trace.prompt_tokens.sum()
    assert sum(s.evictions for s in stats) == simulator.evictions > 0
    for s in stats:
        assert s.type_hits.sum() == s.queue_hits.sum() == s.hit_blocks
        assert s.type_accesses.sum() == s.matchable_blocks
        assert s.type_evictions.sum() == s.queue_evictions.sum() == s.evictions
        assert s.queue_held.sum() <= simulator.num_blocks
        assert (s.type_ghost_misses <= s.type_accesses - s.type_hits).all()
    assert simulator.held_by_type().sum() == simulator.held.sum()


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name)
def test_a_saved_state_continues_to_the_bit(policy: Policy, trace: Trace) -> None:
    whole = Simulator(trace, policy, capacity(trace))
    run(whole, 40)
    first = Simulator(trace, policy, capacity(trace))
    for _ in range(4):
        first.serve(40)
    second = Simulator(trace, policy, capacity(trace))
    second.load_state_dict(first.state_dict())
    run(second, 40)
    for name, array in whole.state_dict()["cache"].items():
        assert np.array_equal(array, second.state_dict()["cache"][name]), name
    assert np.array_equal(whole.hit_blocks, second.hit_blocks)


@pytest.mark.parametrize("policy", [p for p in POLICIES if not p.oracle], ids=lambda p: p.name)
def test_no_policy_but_an_oracle_sees_ahead(policy: Policy, trace: Trace) -> None:
    cut = trace.head(250)
    whole, part = (Simulator(t, policy, capacity(trace)) for t in (trace, cut))
    assert len(part.cache.future) == 0
    whole.serve(250)
    part.serve(250)
    assert np.array_equal(whole.hit_blocks[:250], part.hit_blocks)
    assert np.array_equal(whole.cache.blocks, part.cache.blocks)


def test_an_oracle_gets_the_future_and_is_marked(trace: Trace) -> None:
    oracles = [p for p in POLICIES if p.oracle]
    assert [p.name for p in oracles] == ["optimum"]
    assert len(Simulator(trace, oracles[0], capacity(trace)).cache.future) > 0


def test_gaps_are_counted_whatever_was_evicted(trace: Trace) -> None:
    sessions = find_sessions(trace, "hint")
    counted = {}
    for num_blocks in (int(trace.request_blocks.max()), 10**5):
        simulator = Simulator(trace, SAECache(), num_blocks, sessions)
        stats = simulator.serve(trace.num_requests)
        counted[num_blocks] = stats.gap_count.tolist(), stats.gap_log_sum.tolist()
    assert len({str(c) for c in counted.values()}) == 1
    assert sum(counted[10**5][0]) == int((sessions.gap_seconds > 0).sum())


def test_generated_blocks_go_first_until_they_are_matched() -> None:
    builder = TraceBuilder(BLOCK)
    user = [(i, TokenType.USER) for i in range(32)]
    reply = [(100 + i, TokenType.RESPONSE) for i in range(33)]
    builder.request(0.0, user, reply)
    builder.request(60.0, user + reply + [(500, TokenType.USER)], [(600, TokenType.RESPONSE)])
    simulator = Simulator(builder.trace(), SAECache(), 100)
    simulator.serve(1)
    assert simulator.held_by_type()[Queue.EVICT_FIRST, TokenType.RESPONSE] == 2
    simulator.serve(1)
    assert simulator.hit_blocks.tolist() == [0, 4]
    assert simulator.held_by_type()[Queue.CHAT, TokenType.RESPONSE] == 2


def test_too_small_a_pool_is_refused_by_name(trace: Trace) -> None:
    with pytest.raises(InputError, match=r"num_blocks is 1, but request .* needs"):
        Simulator(trace, LRU(), 1)


def test_a_window_of_nothing_is_refused(trace: Trace) -> None:
    with pytest.raises(InputError, match="at least 1 request, not 0"):
        Simulator(trace, LRU(), capacity(trace)).serve(0)


def test_parameters_of_another_policy_are_refused(trace: Trace) -> None:
    with pytest.raises(InputError, match="belong to another policy"):
        Simulator(trace, LRU(), capacity(trace)).serve(1, UniCache().space().start())


@kernel(SCORE)
def by_recency(cache, slots, size, scores):  # type: ignore[no-untyped-def]
    for i in range(size):
        scores[i] = cache.blocks[slots[i]].access


@kernel(ON_RELEASE)
def nothing(cache, chain, size):  # type: ignore[no-untyped-def]
    pass


class Scanned(Policy):
    """LRU as a policy whose score has no order by key."""

    name = "scanned"

    def functions(self) -> Functions:
        return Functions(score=by_recency, on_release=nothing)

    def classes(self) -> tuple[bool, ...]:
        return (False,)


def test_a_class_without_order_is_scanned_exactly(trace: Trace) -> None:
    ordered, scanned = (Simulator(trace, p, capacity(trace)) for p in (LRU(), Scanned()))
    assert ordered.serve(400).sampled_choices == scanned.serve(400).sampled_choices == 0
    assert np.array_equal(ordered.hit_blocks, scanned.hit_blocks)


def test_a_slot_that_heads_a_class_again_with_another_block_is_scored_anew() -> None:
    """At one moment in time, where scores computed before would still hold."""
    builder = TraceBuilder(2)
    short, long = [0, 0], [1, 0, 1, 1]
    prompts = [[9], [9], [9], short, long, [9], [0, 0, 9], [9], [9], [9], [9], long[:2], long, *[long[:2]] * 4]
    for prompt in prompts:
        builder.request(0.0, [(token, TokenType.SYSTEM) for token in prompt], [])
    trace = builder.trace().without_generated()
    for count in range(1, len(prompts) + 1):
        lru, queued = (Simulator(trace, p, int(trace.request_blocks.max()) + 1) for p in (LRU(), QueuedLRU()))
        lru.serve(count)
        queued.serve(count)
        assert lru.cache.blocks["identity"].tolist() == queued.cache.blocks["identity"].tolist()


def test_many_candidates_are_sampled_and_the_statistics_say_so() -> None:
    builder = TraceBuilder(2)
    for i in range(3 * victims.EXACT_LIMIT):
        builder.request(float(i), [(2 * i, TokenType.USER), (2 * i + 1, TokenType.USER)], [])
    trace = builder.trace()
    scanned = Simulator(trace, Scanned(), victims.EXACT_LIMIT + 100)
    stats = scanned.serve(trace.num_requests)
    assert stats.sampled_choices == stats.evictions > 0
    oldest = np.sort(scanned.cache.blocks["access"])[: victims.EXACT_LIMIT // 2]
    # A sample of 64 finds something old: what survives is mostly recent.
    assert np.median(oldest) > trace.num_requests / 2
