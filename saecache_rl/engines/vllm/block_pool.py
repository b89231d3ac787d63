"""vLLM's block pool with the choice of victims taken over; everything else stays vLLM's.

vLLM's objects, reference counts, events, metrics and its queue of free blocks are kept as they are: each method here
first lets vLLM do its work, then tells the cache with one call. The queue stays in vLLM's own order; only what is taken
from its front is chosen by the policy, so that dropping the policy at any moment, as a failing one is, leaves vLLM.

Where a connector drops the hash of a block that lies in the queue (`evict_blocks`), the block is used next; vLLM
would leave it at its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from saecache_rl.engines.vllm.core import NOBODY, BlockIds
from saecache_rl.engines.vllm.needs import need_vllm
from saecache_rl.engines.vllm.serving import Served, Serving, logger

need_vllm()

from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock  # noqa: E402

from saecache_rl.engines.vllm.short_ways import ShortBlockPool  # noqa: E402

#: After so many failing calls without a good one between them, the policy is left out for good.
FAILURES = 10
_ID, _REFERENCES = attrgetter("block_id"), attrgetter("ref_cnt")
NONE: BlockIds = np.empty(0, np.int32)


def ids_of(blocks: Sequence[KVCacheBlock]) -> BlockIds:
    """(n,) ids of blocks."""
    return np.fromiter(map(_ID, blocks), np.int32, len(blocks))


class PolicyQueue(FreeKVCacheBlockQueue):  # type: ignore[misc]
    """vLLM's queue of free blocks, from which the policy picks."""

    _pool: PolicyBlockPool

    @classmethod
    def over(cls, queue: FreeKVCacheBlockQueue, pool: PolicyBlockPool) -> PolicyQueue:
        """Take over a queue with all that is in it."""
        made = cls.__new__(cls)
        made.__dict__.update(queue.__dict__)
        made._pool = pool
        return made

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """Take `n` free blocks: the policy's choice, or the first ones if there is none."""
        blocks = self._pool.choose(n) if n > 0 else None
        if blocks is None:
            popped: list[KVCacheBlock] = super().popleft_n(n)
            return popped
        for block in blocks:
            before, after = block.prev_free_block, block.next_free_block
            before.next_free_block = after
            after.prev_free_block = before
            block.prev_free_block = block.next_free_block = None
        self.num_free_blocks -= n
        return blocks


class PolicyBlockPool(ShortBlockPool):
    """A block pool whose victims a policy chooses, once `serve` has given it one."""

    free_block_queue: FreeKVCacheBlockQueue

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.serving: Serving | None = None
        #: The request that blocks are being allocated for, and the one whose blocks are being freed.
        self.allocating: Any = None
        self.releasing: Served | None = None
        self.over = False  # whether that one is over
        #: Requests whose blocks vLLM frees later, by the id of their last block.
        self.owners: dict[int, tuple[Served, bool]] = {}
        self._broken = False
        self._failures = 0
        self._off = False

    def serve(self, serving: Serving) -> None:
        """Let `serving` choose from now on; the pool must not have been used."""
        self.serving = serving
        self.free_block_queue = PolicyQueue.over(self.free_block_queue, self)

    @property
    def in_force(self) -> bool:
        """Whether a policy chooses victims."""
        return self.serving is not None and not self._off

    # -- the choice

    def choose(self, count: int) -> list[KVCacheBlock] | None:
        """The policy's choice of free blocks; None for vLLM's own."""
        serving = self.serving
        if serving is None:
            return None
        if self._off or self._broken:
            serving.counts.fallbacks += 1
            return None
        try:
            if self.allocating is not None:
                self._access(serving, NONE)
            blocks = list(map(self.blocks.__getitem__, serving.live.take(count)))
            if any(map(_REFERENCES, blocks)):  # vLLM's free blocks are those without references
                raise RuntimeError("a victim is not free")
            if len(blocks) != count:
                raise RuntimeError(f"{len(blocks)} victims for {count} blocks")
        except Exception as error:
            serving.counts.fallbacks += 1
            self._broken = True  # made good once vLLM has taken its own choice
            serving.failed(f"policy {serving.policy.name}: choice", error)
            return None
        self._failures = 0
        return blocks

    def _access(self, serving: Serving, matched: BlockIds) -> None:
        """The request that blocks are being allocated for is scheduled, if that is not yet known."""
        request, self.allocating = self.allocating, None
        if request.request_id in serving.served:
            if len(matched):
                serving.live.reference(matched)
            return
        serving.live.access(serving.begin(request).facts, matched)

    def _tell(self, place: str, tell: Callable[[Serving], None]) -> None:
        """Tell the cache what vLLM has done; after a failure, make the cache anew from vLLM's state."""
        serving = self.serving
        if serving is None or self._off:
            return
        try:
            if self._broken:
                self._repair(serving)
            else:
                tell(serving)
        except Exception as error:
            serving.failed(f"policy {serving.policy.name}: {place}", error)
            self._repair(serving)

    def _repair(self, serving: Serving) -> None:
        self._broken = False
        self._failures += 1
        try:
            hashed = np.array([b.block_hash is not None for b in self.blocks[1:]], np.uint8)
            refs = np.array([b.ref_cnt for b in self.blocks[1:]], np.int32)
            order = [b.block_id for b in self.free_block_queue.get_all_free_blocks()]
            for block_id in serving.live.repair(hashed, refs, order).tolist():
                self._maybe_evict_cached_block(self.blocks[block_id])
        except Exception as error:
            serving.failed("repair", error)
            self._failures = FAILURES
        if self._failures >= FAILURES:
            self._off = True
            logger.error(
                "saecache_rl: policy %s failed %d times in a row and is left out; vLLM's own order rules from now on",
                serving.policy.name,
                self._failures,
            )

    # -- what vLLM does

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        """See vLLM."""
        blocks = super().get_new_blocks(num_blocks)
        if self._broken:
            self._tell("choice", lambda serving: None)
        return blocks

    def touch(self, blocks: Sequence[KVCacheBlock]) -> None:
        """See vLLM."""
        super().touch(blocks)
        if self.serving is None:
            return
        ids = ids_of(blocks)
        if self.allocating is not None:
            self._tell("access", lambda serving: self._access(serving, ids))
        elif len(ids):
            self._tell("reference", lambda serving: serving.live.reference(ids))

    def cache_full_blocks(
        self,
        request: Any,
        blocks: list[KVCacheBlock],
        num_cached_blocks: int,
        num_full_blocks: int,
        block_size: int,
        kv_cache_group_id: int,
        block_mask: list[bool] | None = None,
    ) -> None:
        """See vLLM."""
        if num_cached_blocks >= num_full_blocks:
            return
        super().cache_full_blocks(
            request, blocks, num_cached_blocks, num_full_blocks, block_size, kv_cache_group_id, block_mask
        )
        if self.serving is None:
            return
        ids = ids_of(blocks[num_cached_blocks:num_full_blocks])
        before = blocks[num_cached_blocks - 1].block_id if num_cached_blocks else 0
        self._tell("insert", lambda serving: self._insert(serving, request, ids, num_cached_blocks, before))

    @staticmethod
    def _insert(serving: Serving, request: Any, ids: BlockIds, offset: int, before: int) -> None:
        served = serving.served.get(request.request_id)
        if served is None:
            served = serving.begin(request)
            serving.live.access(served.facts, NONE)
        serving.insert(served, request, ids, offset, before)

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """See vLLM."""
        blocks = list(ordered_blocks)
        super().free_blocks(blocks)
        if self.serving is None or not blocks:
            return
        served, over = self.releasing, self.over
        if served is None:
            served, over = self.owners.pop(blocks[0].block_id, (None, False))
        facts = NOBODY if served is None else served.facts
        ids = ids_of(blocks)
        self._tell("release", lambda serving: serving.live.release(facts, ids, over))
        if over:
            self.serving.after_end()

    def unpin_blocks(self, blocks: Iterable[KVCacheBlock], on_reuse: Callable[[KVCacheBlock], None]) -> None:
        """See vLLM; a block without a hash is used next all the same."""
        unpinned = list(blocks)
        super().unpin_blocks(unpinned, on_reuse)
        ids = ids_of(unpinned)
        self._tell("release", lambda serving: serving.live.release(NOBODY, ids, False))

    def evict_blocks(self, block_ids: set[int]) -> None:
        """See vLLM."""
        super().evict_blocks(block_ids)
        self._tell("drop", lambda serving: serving.live.drop(sorted(block_ids)))

    def reset_prefix_cache(self) -> bool:
        """See vLLM."""
        done: bool = super().reset_prefix_cache()
        if done:
            order = [block.block_id for block in self.free_block_queue.get_all_free_blocks()]
            self._tell("reset", lambda serving: serving.live.reset(order))
        return done
