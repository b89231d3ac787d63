"""vLLM's block pool with its work on each block written out: the same state after each call, in less time.

They make up for our own work on each block. They hold where nothing else is attached to a block; with KV events,
metrics of residency or hashes of partial blocks, and without prefix caching, vLLM's own methods run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from saecache_rl.engines.vllm.needs import need_vllm

need_vllm()

from vllm.v1.core.block_pool import BlockPool  # noqa: E402
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock  # noqa: E402

#: What vLLM appends to a hash for its group, by group.
_SUFFIXES = [group_id.to_bytes(4, "big") for group_id in range(8)]


class ShortBlockPool(BlockPool):  # type: ignore[misc]
    """A block pool that does what vLLM's does, faster."""

    free_block_queue: FreeKVCacheBlockQueue

    @property
    def _plain(self) -> bool:
        """Whether a block has a hash at most, and nobody wants to hear of it."""
        return (
            self.enable_caching
            and not self.enable_kv_cache_events
            and self.metrics_collector is None
            and not self.cached_block_hashes_by_block
        )

    def get_cached_block(self, block_hash: Any, kv_cache_group_ids: list[int]) -> list[KVCacheBlock] | None:
        """See vLLM."""
        if len(kv_cache_group_ids) == 1:
            found = self.cached_block_hash_to_block._cache.get(block_hash + _SUFFIXES[kv_cache_group_ids[0]])
            if found is None:
                return None
            if type(found) is KVCacheBlock:
                return [found]
        cached: list[KVCacheBlock] | None = super().get_cached_block(block_hash, kv_cache_group_ids)
        return cached

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        """See vLLM."""
        blocks: list[KVCacheBlock]
        if not self._plain or num_blocks > self.free_block_queue.num_free_blocks:
            blocks = super().get_new_blocks(num_blocks)
            return blocks
        blocks = self.free_block_queue.popleft_n(num_blocks)
        if self._reuse_watchers:
            self._notify_reuse(blocks)
        known = self.cached_block_hash_to_block
        pop = known._cache.pop
        for block in blocks:
            assert block.ref_cnt == 0
            block.ref_cnt = 1
            key = block._block_hash
            if key is not None:
                block._block_hash = block._block_hash_num_tokens = None
                found = pop(key, None)
                if found is not block and found is not None:  # it has copies
                    known._cache[key] = found
                    known.pop(key, block.block_id)
        return blocks

    def touch(self, blocks: Sequence[KVCacheBlock]) -> None:
        """See vLLM."""
        if self.metrics_collector is not None:
            super().touch(blocks)
            return
        removed = 0
        for block in blocks:
            references = block.ref_cnt
            if references == 0 and not block.is_null:
                before, after = block.prev_free_block, block.next_free_block
                before.next_free_block = after
                after.prev_free_block = before
                block.prev_free_block = block.next_free_block = None
                removed += 1
            block.ref_cnt = references + 1
        self.free_block_queue.num_free_blocks -= removed

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
        if block_mask is not None or block_size != self.hash_block_size or not self._plain:
            super().cache_full_blocks(
                request, blocks, num_cached_blocks, num_full_blocks, block_size, kv_cache_group_id, block_mask
            )
            return
        known = self.cached_block_hash_to_block
        insert = known._cache.setdefault
        suffix = _SUFFIXES[kv_cache_group_id]
        hashes = request.block_hashes[num_cached_blocks:num_full_blocks]
        tokens = num_cached_blocks * block_size
        for block, block_hash in zip(blocks[num_cached_blocks:num_full_blocks], hashes, strict=True):
            tokens += block_size
            if block.is_null:
                continue
            if block._block_hash is not None:
                at = tokens // block_size
                super().cache_full_blocks(request, blocks, at - 1, at, block_size, kv_cache_group_id)
                continue
            block._block_hash = key = block_hash + suffix
            block._block_hash_num_tokens = tokens
            if insert(key, block) is not block:
                known.insert(key, block)

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """See vLLM."""
        if not self.enable_caching:
            super().free_blocks(ordered_blocks)
            return
        queue = self.free_block_queue
        unhashed: list[KVCacheBlock] = []
        tail = queue.fake_free_list_tail
        last = tail.prev_free_block
        freed = 0
        for block in ordered_blocks:
            block.ref_cnt = references = block.ref_cnt - 1
            if references == 0 and not block.is_null:
                if block._block_hash is None:
                    unhashed.append(block)
                else:
                    block.prev_free_block = last
                    last.next_free_block = block
                    last = block
                    freed += 1
        last.next_free_block = tail
        tail.prev_free_block = last
        queue.num_free_blocks += freed
        queue.prepend_n(unhashed)
