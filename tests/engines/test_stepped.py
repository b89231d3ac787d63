"""The simulator that stops at each victim: the same hits and counts as the one that does not, for the same victims."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saecache_rl.cache.layout import ON_RELEASE
from saecache_rl.cache.policies.lru import LRU
from saecache_rl.cache.policies.optimum import NEVER, REPLACED, Optimum, next_uses, on_access, uses_ahead
from saecache_rl.cache.policies.queued_lru import QueuedLRU
from saecache_rl.cache.policy import Functions
from saecache_rl.compiled import kernel
from saecache_rl.engines.simulator import Simulator
from saecache_rl.engines.stepped import SteppedSimulator
from saecache_rl.errors import InputError
from saecache_rl.workloads.trace import Trace
from tests.cache.strategies import traces
from tests.support import tiny_trace


@kernel(ON_RELEASE)
def keep_leaves(cache, chain, size):  # type: ignore[no-untyped-def]
    request = cache.request[0]
    for i in range(size):
        at = request.prompt_start + i
        if i >= request.prompt_blocks:
            at = cache.ints[0] + request.generated_start + i - request.prompt_blocks
        use = cache.future[at]
        cache.blocks[chain[i]].key = -NEVER if use == REPLACED else -use


class ClosedOptimum(Optimum):
    """Furthest next use among leaves only: without the optimum's licence to make holes."""

    name = "closed_optimum"

    def functions(self) -> Functions:
        return Functions(on_access=on_access, on_release=keep_leaves)


def serve_lru(trace: Trace, num_blocks: int, k: int, run: bool) -> SteppedSimulator:
    engine = SteppedSimulator(trace, num_blocks, k, run)
    found = engine.advance()
    while found:
        found = engine.advance(0)
    return engine


def serve_oracle(trace: Trace, num_blocks: int, k: int) -> SteppedSimulator:
    engine = SteppedSimulator(trace, num_blocks, k)
    uses = next_uses(trace)
    found = engine.advance()
    while found:
        ahead = uses_ahead(trace, uses, engine.candidates, engine.position)
        furthest = np.flatnonzero(ahead == ahead.max())
        found = engine.advance(int(furthest[np.argmax(engine.candidates["offset"][furthest])]))
    return engine


@pytest.mark.parametrize("run", [False, True])
@pytest.mark.parametrize("k", [1, 3, 40])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_first_candidate_is_lrus_victim(seed: int, k: int, run: bool) -> None:
    trace = tiny_trace(seed, 300)
    num_blocks = 2 * int(trace.request_blocks.max())
    engine = serve_lru(trace, num_blocks, k, run)
    lru = Simulator(trace, LRU(), num_blocks)
    assert lru.serve(300).evictions == engine.evictions > 1000
    assert np.array_equal(engine.hit_blocks, lru.hit_blocks)
    assert engine.stats() == Simulator(trace, QueuedLRU(), num_blocks).serve(300)


@settings(max_examples=150, deadline=None)
@given(trace=traces(), extra=st.integers(0, 8), k=st.integers(1, 5), run=st.booleans())
def test_it_is_lru_on_any_trace(trace: Trace, extra: int, k: int, run: bool) -> None:
    num_blocks = int(trace.request_blocks.max()) + extra
    engine = serve_lru(trace, num_blocks, k, run)
    lru, queued = Simulator(trace, LRU(), num_blocks), Simulator(trace, QueuedLRU(), num_blocks)
    lru.serve(trace.num_requests)
    assert engine.stats() == queued.serve(trace.num_requests)
    assert engine.hit_blocks.tolist() == lru.hit_blocks.tolist() == queued.hit_blocks.tolist()
    assert np.array_equal(engine.cache.blocks["identity"], lru.cache.blocks["identity"])


@settings(max_examples=150, deadline=None)
@given(trace=traces(), extra=st.integers(0, 8))
def test_an_oracle_among_all_leaves_is_the_optimum_of_leaves(trace: Trace, extra: int) -> None:
    num_blocks = int(trace.request_blocks.max()) + extra
    engine = serve_oracle(trace, num_blocks, num_blocks)
    optimum = Simulator(trace, ClosedOptimum(), num_blocks)
    stats = optimum.serve(trace.num_requests)
    assert engine.hit_blocks.tolist() == optimum.hit_blocks.tolist()
    assert engine.stats().evictions == stats.evictions


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_an_oracle_reaches_the_optimum_where_no_hole_helps(seed: int) -> None:
    trace = tiny_trace(seed, 300)
    num_blocks = 2 * int(trace.request_blocks.max())
    optimum, lru = (Simulator(trace, p, num_blocks) for p in (Optimum(), LRU()))
    assert serve_oracle(trace, num_blocks, 64).stats().hit_tokens == optimum.serve(300).hit_tokens
    few = serve_oracle(trace, num_blocks, 2)
    assert lru.serve(300).hit_tokens < few.stats().hit_tokens <= optimum.hit_tokens.sum()


def test_the_length_of_a_reply_is_not_told_before_it_is_decoded() -> None:
    trace = tiny_trace(0, 200)
    engine = SteppedSimulator(trace, 2 * int(trace.request_blocks.max()), 8)
    found = engine.advance()
    replies = 0
    while found:
        r = engine.position
        prompt = -(-int(trace.prompt_tokens[r]) // trace.block_size) - int(engine.hit_blocks[r])
        assert 1 <= engine.needed <= max(prompt, 1)
        before, needed = r, engine.needed
        found = engine.advance(0)
        if found and engine.position == before:
            assert engine.needed == max(needed - 1, 1)
            replies += needed == 1
    assert replies > 0


def test_a_saved_state_continues_in_the_midst_of_a_request() -> None:
    trace = tiny_trace(3, 200)
    options = (trace, 2 * int(trace.request_blocks.max()), 8)
    one, other = SteppedSimulator(*options), SteppedSimulator(*options)
    found = one.advance()
    for step in range(500):
        found = one.advance(step % found)
    other.load_state_dict(one.state_dict())
    step = 0
    while found:
        assert np.array_equal(one.candidates, other.candidates)
        found = one.advance(step % found)
        assert other.advance(step % other.num_candidates) == found
        step += 1
    assert one.stats() == other.stats()
    with pytest.raises(InputError, match="does not fit"):
        SteppedSimulator(*options[:2], 9).load_state_dict(one.state_dict())


def test_whole_windows_and_absent_candidates_are_refused() -> None:
    trace = tiny_trace(0, 100)
    engine = SteppedSimulator(trace, 2 * int(trace.request_blocks.max()), 4)
    with pytest.raises(InputError, match="call advance"):
        engine.serve(10)
    with pytest.raises(IndexError, match="candidate 0 of 0"):
        engine.advance(0)
