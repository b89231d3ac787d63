"""What vLLM's block pool does, ours does too: aborts, preemption, deferred frees, resets; and what a policy breaks."""

from __future__ import annotations

from typing import Any

import pytest

from saecache_rl.cache.policies.arc import ARC
from saecache_rl.cache.policies.lecar import LeCaR
from saecache_rl.cache.policies.lhd import LHD
from saecache_rl.cache.policies.lpc import LPC
from saecache_rl.cache.policies.lru import LRU
from saecache_rl.cache.policies.marconi import Marconi
from saecache_rl.cache.policies.s3fifo import S3FIFO
from saecache_rl.cache.policies.saecache import SAECache
from saecache_rl.cache.policies.slru import SLRU
from saecache_rl.cache.policies.tlru import TailOptimizedLRU
from saecache_rl.cache.policies.workload_aware import WorkloadAware
from saecache_rl.cache.policy import Policy
from saecache_rl.errors import InputError
from tests.engines.vllm.support import (
    BLOCK,
    check_agreement,
    finish,
    make_request,
    once,
    replay,
    start,
)

pytestmark = pytest.mark.live

#: With one class, with several, and with state of their own for each slot.
LLM_PEERS = [TailOptimizedLRU(), WorkloadAware(), Marconi(), LPC()]
POLICIES = [LRU(), SAECache(), SLRU(), S3FIFO(), ARC(), LHD(), LeCaR(), *LLM_PEERS]


def tokens(blocks: int, seed: int, more: int = 1) -> list[int]:
    return [1000 * seed + i for i in range(blocks * BLOCK + more)]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name)
def test_aborts_and_preemptions_give_everything_back(policy: Policy) -> None:
    from vllm.v1.request import RequestStatus

    on = replay(policy, 40)
    manager = on.manager
    one, two = make_request(on, "1", tokens(8, 1)), make_request(on, "2", tokens(12, 2))
    start(manager, one)
    start(manager, two)
    check_agreement(manager)
    manager.free(two)  # preempted: it holds nothing and goes on later
    two.status, two.num_computed_tokens = RequestStatus.PREEMPTED, 0
    two.num_preemptions += 1
    check_agreement(manager)
    before = manager.serving.live.cache.pool["access"][0]
    assert start(manager, two) == 12 * BLOCK
    assert manager.serving.live.cache.pool["access"][0] == before, "a match after a preemption is no access"
    finish(manager, one, aborted=True)
    finish(manager, two)
    check_agreement(manager)
    assert manager.block_pool.get_num_free_blocks() == 40
    assert not manager.serving.served
    finish(manager, make_request(on, "3", tokens(2, 3)), aborted=True)  # before it was ever scheduled
    check_agreement(manager)


def test_chunked_prefill_is_one_access() -> None:
    on = replay(SAECache(), 40)
    manager = on.manager
    request = make_request(on, "1", tokens(10, 1))
    for chunk in (5 * BLOCK, 5 * BLOCK + 1):
        assert manager.allocate_slots(request, chunk) is not None
        request.num_computed_tokens += chunk
        check_agreement(manager)
    finish(manager, request)
    assert manager.serving.live.cache.pool["access"][0] == 1
    assert once(manager, make_request(on, "2", tokens(10, 1))) == 10 * BLOCK
    check_agreement(manager)


def test_frees_that_vllm_defers_are_their_requests() -> None:
    from vllm.v1.request import RequestStatus

    on = replay(SAECache(), 40)
    manager = on.manager
    request = make_request(on, "1", tokens(4, 1), {"session_id": "s"})
    start(manager, request)
    request.status = RequestStatus.FINISHED_STOPPED
    blocks = manager.pop_blocks_for_free(request)
    once(manager, make_request(on, "2", tokens(4, 2)))
    manager.block_pool.free_blocks(reversed(blocks))
    check_agreement(manager)
    assert not manager.block_pool.owners
    assert manager.serving.live.cache.request["session"][0] == 0  # the first request's, though another came between


def test_equal_prompts_at_once_keep_both_copies() -> None:
    on = replay(LRU(), 20)
    manager = on.manager
    one, two = make_request(on, "1", tokens(4, 1)), make_request(on, "2", tokens(4, 1))
    assert start(manager, one) == 0
    blocks, _, _ = manager.get_computed_blocks(make_request(on, "x", tokens(1, 9)))
    assert manager.allocate_slots(two, two.num_tokens, 0, blocks) is not None  # matched before the first was cached
    check_agreement(manager)
    finish(manager, one)
    finish(manager, two)
    check_agreement(manager)
    for seed in range(3, 9):
        once(manager, make_request(on, str(seed), tokens(4, seed)))
        check_agreement(manager)


def test_salts_keep_apart() -> None:
    on = replay(SAECache(), 20)
    assert once(on.manager, make_request(on, "1", tokens(4, 1), cache_salt="a")) == 0
    assert once(on.manager, make_request(on, "2", tokens(4, 1), cache_salt="b")) == 0
    assert once(on.manager, make_request(on, "3", tokens(4, 1), cache_salt="a")) == 4 * BLOCK
    check_agreement(on.manager)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name)
def test_reset_empties_the_cache(policy: Policy) -> None:
    on = replay(policy, 20)
    manager = on.manager
    for seed in range(4):
        once(manager, make_request(on, str(seed), tokens(3, seed)))
    running = make_request(on, "r", tokens(2, 9))
    start(manager, running)
    assert not manager.reset_prefix_cache()
    check_agreement(manager)
    finish(manager, running)
    assert manager.reset_prefix_cache()
    check_agreement(manager)
    assert once(manager, make_request(on, "again", tokens(3, 3))) == 0
    check_agreement(manager)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name)
def test_a_dropped_hash_leaves_no_match_and_no_trace(policy: Policy) -> None:
    on = replay(policy, 20)
    manager = on.manager
    request = make_request(on, "1", tokens(6, 1))
    start(manager, request)
    held = [b.block_id for b in manager.get_blocks("1").blocks[0]]
    manager.evict_blocks({held[2]})
    finish(manager, request)
    assert once(manager, make_request(on, "2", tokens(6, 1))) == 2 * BLOCK
    for seed in range(2, 10):
        once(manager, make_request(on, str(seed + 10), tokens(5, seed)))
    pool = manager.block_pool
    cache = pool.serving.live.cache
    for block in pool.blocks[1:]:
        assert (cache.blocks["identity"][block.block_id - 1] >= 0) == (block.block_hash is not None)
    manager.evict_blocks({b.block_id for b in pool.blocks[1:]})
    assert pool.serving.live._nodes.count[0] == len(pool.serving.live._nodes.free), "a node without a block"
    assert not pool.serving.counts.errors


def test_an_error_in_the_choice_falls_back_to_vllm() -> None:
    ours, plain = replay(LRU(), 20), replay(None, 20)
    live = ours.manager.serving.live
    take, fails = live.take, []

    def broken(need: int) -> list[int]:
        if len(fails) in (5, 6):
            fails.append(1)
            take(need)  # the cache's state is now wrong as well
            raise RuntimeError("injected")
        fails.append(0)
        return take(need)

    live.take = broken
    for seed in range(14):
        for side in (ours, plain):
            once(side.manager, make_request(side, str(seed), tokens(4, seed % 6)))
        assert _evicted(ours) == _evicted(plain)
    counts = ours.manager.serving.counts
    assert sum(fails) == counts.fallbacks == 2
    assert sum(counts.errors.values()) == 2
    counts.errors.clear()
    check_agreement(ours.manager)


def _evicted(on: Any) -> list[Any]:
    from vllm.distributed.kv_events import BlockRemoved

    return [h for event in on.manager.take_events() if isinstance(event, BlockRemoved) for h in event.block_hashes]


def test_a_policy_that_always_fails_is_left_out() -> None:
    ours, plain = replay(LRU(), 20), replay(None, 20)
    live = ours.manager.serving.live

    def broken(*arguments: Any) -> Any:
        raise RuntimeError("injected")

    live.take = live.release = live.insert = broken
    for seed in range(30):
        for side in (ours, plain):
            once(side.manager, make_request(side, str(seed), tokens(4, seed)))
    assert not ours.manager.block_pool.in_force
    assert ours.manager.serving.counts.fallbacks > 10
    assert ours.manager.block_pool.get_num_free_blocks() == 20
    assert _evicted(ours)


def test_an_agent_that_fails_is_counted_and_its_parameters_stay() -> None:
    on = replay(SAECache(), 20, window=2)
    serving = on.manager.serving

    class Failing:
        name, policy = "failing", SAECache()

        def act(self, stats: Any) -> Any:
            raise ZeroDivisionError

        def observe(self, stats: Any, reward: float) -> None:
            raise ZeroDivisionError

    object.__setattr__(serving.choice, "agent", Failing())
    for seed in range(4):
        once(on.manager, make_request(on, str(seed), tokens(2, seed)))
    assert serving.counts.errors == {"agent.act": 2, "agent.observe": 2}
    assert serving.live.params == SAECache().space().start()


# LHD learns here that what is old is used again, and keeps a part of it.
@pytest.mark.parametrize("policy", [p for p in POLICIES if p.name != "lhd"], ids=lambda p: p.name)
def test_retention_outranks_while_it_lasts_and_never_pins(policy: Policy) -> None:
    on = replay(policy, 20)
    manager = on.manager
    keep = {"retention_seconds": 100.0, "priority": 80}
    once(manager, make_request(on, "kept", tokens(5, 1), keep))
    for seed in range(2, 12):
        once(manager, make_request(on, str(seed), tokens(5, seed)))
        check_agreement(manager)
    assert once(manager, make_request(on, "again", tokens(5, 1))) == 5 * BLOCK
    # Hints that protect the whole pool still let the next request in at once.
    for seed in range(20, 26):
        once(manager, make_request(on, f"all {seed}", tokens(5, seed), keep))
    once(manager, make_request(on, "next", tokens(15, 50)))
    check_agreement(manager)
    # When the time is over, a retained block is one like others.
    on.clock.now = 300.0
    for seed in range(60, 66):
        once(manager, make_request(on, f"after {seed}", tokens(5, seed)))
    assert once(manager, make_request(on, "gone", tokens(5, 25))) == 0
    check_agreement(manager)


def test_a_request_without_reuse_goes_first() -> None:
    on = replay(LRU(), 20)
    manager = on.manager
    once(manager, make_request(on, "old", tokens(5, 1)))
    once(manager, make_request(on, "spent", tokens(5, 2), {"no_reuse": True}))
    once(manager, make_request(on, "new", tokens(11, 3)))
    assert once(manager, make_request(on, "old again", tokens(5, 1))) == 5 * BLOCK
    check_agreement(manager)


def test_a_block_that_is_used_after_all_is_one_like_others() -> None:
    on = replay(LRU(), 20)
    manager = on.manager
    once(manager, make_request(on, "spent", tokens(5, 2), {"no_reuse": True}))
    assert once(manager, make_request(on, "after all", tokens(5, 2))) == 5 * BLOCK
    once(manager, make_request(on, "new", tokens(5, 3)))
    once(manager, make_request(on, "large", tokens(13, 4)))
    assert once(manager, make_request(on, "new again", tokens(5, 3))) == 5 * BLOCK
    check_agreement(manager)


def test_several_groups_and_other_attention_are_refused_by_name() -> None:
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec

    from saecache_rl.engines.vllm.manager import PolicyKVCacheManager

    full = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=1, dtype=torch.float32)
    window = SlidingWindowSpec(block_size=16, num_kv_heads=1, head_size=1, dtype=torch.float32, sliding_window=64)
    choice = replay(LRU(), 20).manager.serving.choice
    for specs, named in (((full, window), "2"), ((window,), "SlidingWindowManager")):
        groups = [KVCacheGroupSpec([f"layer {i}"], spec) for i, spec in enumerate(specs)]
        config = KVCacheConfig(num_blocks=21, kv_cache_tensors=[], kv_cache_groups=groups)
        with pytest.raises(InputError, match=named):
            PolicyKVCacheManager(config, max_model_len=320, scheduler_block_size=16, hash_block_size=16, choice=choice)
