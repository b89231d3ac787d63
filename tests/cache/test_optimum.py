"""The offline optimum against exhaustive search, and above every policy."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saecache_rl.cache.policies.optimum import Optimum
from saecache_rl.cache.policy import Policy
from saecache_rl.engines.capacity import ceiling
from saecache_rl.engines.simulator import Simulator
from saecache_rl.workloads.trace import Trace
from tests.cache.strategies import traces
from tests.cache.test_victims import POLICIES
from tests.support import tiny_trace

Contents = tuple[tuple[int, int], ...]  # (identity, copies), sorted


def best_hits(trace: Trace, num_blocks: int) -> int:
    """The most hit blocks that any choice of victims gives: every choice is tried, holes in prefixes allowed."""
    requests = []
    for r in range(trace.num_requests):
        prompt = tuple(int(b) for b in trace.prompt_blocks[trace.prompt_start[r] : trace.prompt_start[r + 1]])
        made = tuple(int(b) for b in trace.generated_blocks[trace.generated_start[r] : trace.generated_start[r + 1]])
        matchable = (int(trace.prompt_tokens[r]) - 1) // trace.block_size
        requests.append((prompt, made, matchable, int(trace.request_blocks[r])))

    @cache
    def best(r: int, contents: Contents) -> int:
        if r == len(requests):
            return 0
        prompt, made, matchable, total = requests[r]
        held = Counter(dict(contents))
        hits = 0
        while hits < matchable and held[prompt[hits]] > 0:
            hits += 1
        free = num_blocks - held.total()
        evictable = sorted((held - Counter(prompt[:hits])).elements())
        forced = max(total - hits - free, 0)
        return hits + max(
            best(r + 1, tuple(sorted((held - Counter(gone) + Counter(prompt[hits:]) + Counter(made)).items())))
            for gone in set(combinations(evictable, forced))
        )

    return best(0, ())


def hit_blocks(trace: Trace, policy: Policy, num_blocks: int) -> int:
    return Simulator(trace, policy, num_blocks).serve(trace.num_requests).hit_blocks


@settings(max_examples=600, deadline=None)
@given(trace=traces(max_requests=9, max_prompt=8, max_reply=5), extra=st.integers(0, 2))
def test_equals_exhaustive_search(trace: Trace, extra: int) -> None:
    num_blocks = int(trace.request_blocks.max()) + extra
    assert hit_blocks(trace, Optimum(), num_blocks) == best_hits(trace, num_blocks)


@settings(max_examples=150, deadline=None)
@given(trace=traces(), extra=st.integers(0, 8))
def test_no_policy_hits_more_and_the_ceiling_is_above(trace: Trace, extra: int) -> None:
    num_blocks = int(trace.request_blocks.max()) + extra
    bound = hit_blocks(trace, Optimum(), num_blocks)
    assert bound <= int(ceiling(trace).hit_blocks.sum())
    for policy in POLICIES:
        assert hit_blocks(trace, policy, num_blocks) <= bound, policy.name


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name)
def test_a_pool_as_large_as_the_trace_hits_the_ceiling(policy: Policy) -> None:
    trace = tiny_trace(seed=3, requests=150)
    everything = len(trace.prompt_blocks) + len(trace.generated_blocks) + 1
    simulator = Simulator(trace, policy, everything)
    simulator.serve(trace.num_requests)
    assert simulator.evictions == 0
    assert simulator.hit_blocks.tolist() == ceiling(trace).hit_blocks.tolist()


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name)
def test_hits_of_each_request_stay_below_the_ceiling(policy: Policy) -> None:
    trace = tiny_trace(seed=4, requests=300)
    simulator = Simulator(trace, policy, int(trace.request_blocks.max()) * 3)
    simulator.serve(trace.num_requests)
    assert simulator.evictions > 0
    assert (simulator.hit_blocks <= ceiling(trace).hit_blocks).all()
