"""Our pool does to vLLM's objects what a plain `BlockPool` does, driven by the same calls and with the same victims."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saecache_rl.cache.policies.lru import LRU
from saecache_rl.cache.policies.saecache import SAECache
from saecache_rl.cache.policy import Policy
from tests.engines.vllm.support import check_agreement, make_request, replay
from tests.support import tiny_trace

pytestmark = pytest.mark.live

BLOCK, BLOCKS = 2, 9
TRACE = tiny_trace(0, 20, BLOCK)


class Notes:
    """In the place of vLLM's metrics of residency: what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_block"):
            raise AttributeError(name)
        return lambda block: self.told.append((name, block.block_id))

    def reset(self) -> None:
        self.told.append(("reset", 0))


class Pair:
    """Our manager, and vLLM's with a queue that gives the blocks which ours chose."""

    def __init__(self, policy: Policy, attached: str) -> None:
        events = attached == "events"
        self.replays = [replay(p, BLOCKS, TRACE, events=events) for p in (policy, None)]
        self.managers = [side.manager for side in self.replays]
        self.running: list[list[Any]] = []  # each request on both sides
        self.paused: list[list[Any]] = []
        self.deferred: list[list[Any]] = []
        self.number = 0
        self.dropped = False
        for manager in self.managers:
            manager.block_pool.metrics_collector = Notes() if attached == "metrics" else None
        ours, theirs = (manager.block_pool.free_block_queue for manager in self.managers)
        chosen: list[list[int]] = []
        choose = ours.popleft_n

        def noted(n: int) -> Any:
            blocks = choose(n)
            chosen.append([block.block_id for block in blocks])
            return blocks

        def same(n: int) -> Any:
            blocks = [self.managers[1].block_pool.blocks[i] for i in chosen.pop(0)]
            assert len(blocks) == n
            for block in blocks:
                theirs.remove(block)
            return blocks

        ours.popleft_n, theirs.popleft_n = noted, same

    def state(self, side: int) -> dict[str, Any]:
        """All that can be seen of a pool."""
        pool = self.managers[side].block_pool
        known = pool.cached_block_hash_to_block._cache
        return {
            "blocks": [(b.ref_cnt, b.block_hash, b.block_hash_num_tokens) for b in pool.blocks],
            "known": {key: list(v) if isinstance(v, dict) else [v.block_id] for key, v in known.items()},
            "queue": [b.block_id for b in pool.free_block_queue.get_all_free_blocks()],
            "free": pool.get_num_free_blocks(),
            "events": pool.take_events(),
            "told": pool.metrics_collector.told if pool.metrics_collector else None,
            "held": {key: [b.block_id for b in v] for key, v in self.held(side).items()},
            "usage": pool.get_usage(),
        }

    def held(self, side: int) -> Any:
        return self.managers[side].coordinator.single_type_managers[0].req_to_blocks

    def check(self) -> None:
        assert self.state(0) == self.state(1)
        check_agreement(self.managers[0], self.dropped)

    def start(self, tokens: list[int]) -> None:
        self.number += 1
        both = [make_request(side, str(self.number), tokens) for side in self.replays]
        if self.schedule(both):
            self.running.append(both)

    def schedule(self, both: list[Any]) -> bool:
        from vllm.v1.request import RequestStatus

        done = []
        for manager, request in zip(self.managers, both, strict=True):
            blocks, hit, _ = manager.get_computed_blocks(request)
            got = manager.allocate_slots(request, request.num_tokens - hit, hit, blocks)
            done.append((hit, [b.block_id for b in blocks.blocks[0]], got is not None))
            if got is not None:
                request.num_computed_tokens, request.status = request.num_tokens, RequestStatus.RUNNING
        assert done[0] == done[1]
        return done[0][2]

    def decode(self, which: int, tokens: list[int]) -> None:
        done = []
        for manager, request in zip(self.managers, self.running[which], strict=True):
            request.append_output_token_ids(tokens)
            got = manager.allocate_slots(request, len(tokens))
            done.append(got is not None)
            if got is not None:
                request.num_computed_tokens += len(tokens)
        assert done[0] == done[1]
        if not done[0]:
            self.leave(which, preempt=False)

    def leave(self, which: int, preempt: bool) -> None:
        from vllm.v1.request import RequestStatus

        both = self.running.pop(which)
        for manager, request in zip(self.managers, both, strict=True):
            request.status = RequestStatus.PREEMPTED if preempt else RequestStatus.FINISHED_STOPPED
            manager.free(request)
            request.num_computed_tokens = 0
        if preempt:
            self.paused.append(both)

    def defer(self, which: int) -> None:
        from vllm.v1.request import RequestStatus

        both = self.running.pop(which)
        for request in both:
            request.status = RequestStatus.FINISHED_STOPPED
        self.deferred.append([m.pop_blocks_for_free(r) for m, r in zip(self.managers, both, strict=True)])

    def give_back(self) -> None:
        for manager, blocks in zip(self.managers, self.deferred.pop(0), strict=True):
            manager.block_pool.free_blocks(reversed(blocks))


NUMBER = st.integers(0, 5)
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=12)
OPERATIONS = st.one_of(
    st.tuples(st.just("start"), TOKENS),
    st.tuples(st.just("start"), TOKENS),
    st.tuples(st.just("decode"), NUMBER, st.lists(st.integers(0, 1), min_size=1, max_size=3)),
    st.tuples(st.just("end"), NUMBER),
    st.tuples(st.just("end"), NUMBER),
    st.tuples(st.just("preempt"), NUMBER),
    st.tuples(st.just("resume")),
    st.tuples(st.just("defer"), NUMBER),
    st.tuples(st.just("give back")),
    st.tuples(st.just("drop"), st.sets(st.integers(1, BLOCKS), max_size=3)),
    st.tuples(st.just("reset")),
)


def drive(pair: Pair, operations: list[tuple[Any, ...]]) -> None:
    """Do each on both sides, where it can be done, and compare them after it."""
    for name, *arguments in operations:
        if name == "start":
            pair.start(arguments[0])
        elif name in ("decode", "end", "preempt", "defer"):
            if not pair.running:
                continue
            which = arguments[0] % len(pair.running)
            if name == "decode":
                pair.decode(which, arguments[1])
            elif name == "defer":
                pair.defer(which)
            else:
                pair.leave(which, preempt=name == "preempt")
        elif name == "resume" and pair.paused:
            if pair.schedule(pair.paused[0]):
                pair.running.append(pair.paused.pop(0))
        elif name == "give back" and pair.deferred:
            pair.give_back()
        elif name == "drop":
            pair.dropped = True
            for manager in pair.managers:
                manager.evict_blocks(set(arguments[0]))
        elif name == "reset":
            assert len({manager.reset_prefix_cache() for manager in pair.managers}) == 1
        pair.check()


ATTACHED = pytest.mark.parametrize("attached", ["nothing", "events", "metrics"])
POLICIES = pytest.mark.parametrize("policy", [LRU(), SAECache()], ids=lambda p: p.name)


@ATTACHED
@POLICIES
@settings(max_examples=50, deadline=None)
@given(operations=st.lists(OPERATIONS, max_size=40))
def test_every_call_leaves_the_state_that_vllms_leaves(
    policy: Policy, attached: str, operations: list[tuple[Any, ...]]
) -> None:
    drive(Pair(policy, attached), operations)


@ATTACHED
@POLICIES
def test_so_does_a_long_run_in_a_full_pool(policy: Policy, attached: str) -> None:
    """Hundreds of evictions, of blocks that have copies among them."""
    chance = Random(1)
    pair = Pair(policy, attached)

    def tokens(least: int, most: int) -> list[int]:
        return [chance.randrange(2) for _ in range(chance.randint(least, most))]

    pool = pair.managers[1].block_pool
    own, copies = pool.cached_block_hash_to_block.pop, 0

    def noted(key: Any, block_id: int) -> Any:
        nonlocal copies
        copies += isinstance(pool.cached_block_hash_to_block._cache.get(key), dict)
        return own(key, block_id)

    pool.cached_block_hash_to_block.pop = noted
    for _ in range(500):
        drive(
            pair,
            [
                chance.choice([("start", tokens(1, 12)), ("end", 0), ("preempt", 0), ("resume",), ("defer", 1)]),
                chance.choice([("decode", 0, tokens(1, 3)), ("end", chance.randrange(3)), ("give back",)]),
            ],
        )
    assert pair.managers[0].serving.live.evictions > 100
    assert copies > 10
