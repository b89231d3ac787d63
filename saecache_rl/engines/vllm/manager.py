"""vLLM's KV-cache manager over a `PolicyBlockPool`: it tells the pool which request it is working for."""

from __future__ import annotations

from typing import Any

from saecache_rl.engines.vllm.needs import need_vllm
from saecache_rl.engines.vllm.serving import Choice, Serving, logger
from saecache_rl.errors import InputError

need_vllm()

from vllm.v1.core import kv_cache_coordinator  # noqa: E402
from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager  # noqa: E402
from vllm.v1.core.kv_cache_utils import KVCacheBlock  # noqa: E402
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager  # noqa: E402

from saecache_rl.engines.vllm.block_pool import PolicyBlockPool  # noqa: E402


def check_supported(coordinator: Any) -> None:
    """Refuse what the policy would not see rightly.

    Raises:
        InputError: several KV-cache groups, another attention than full, or hashes of partial blocks; named.
    """
    managers = coordinator.single_type_managers
    remedy = "unset SAECACHE_AGENT for this model"
    if len(managers) != 1:
        kinds = ", ".join(type(m.kv_cache_spec).__name__ for m in managers)
        raise InputError(f"saecache_rl supports one KV-cache group, this model has {len(managers)} ({kinds}); {remedy}")
    manager = managers[0]
    if type(manager) is not FullAttentionManager:
        raise InputError(
            f"saecache_rl supports full attention, this model's cache is managed by {type(manager).__name__}; {remedy}"
        )
    hash_block_size = coordinator.block_pool.hash_block_size
    if manager.block_size != hash_block_size:
        raise InputError(
            f"saecache_rl supports no hashes of partial blocks: block size {manager.block_size}, hashes of "
            f"{hash_block_size} tokens; {remedy}"
        )


class PolicyKVCacheManager(KVCacheManager):  # type: ignore[misc]
    """A manager whose block pool evicts as a policy says."""

    block_pool: PolicyBlockPool

    def __init__(self, *args: Any, choice: Choice | None = None, **kwargs: Any) -> None:
        """Make the manager.

        Args:
            args, kwargs: vLLM's.
            choice: the agent and what goes with it; None: as the environment's SAECACHE_… say.

        Raises:
            InputError: an unknown agent, or a model whose cache is not supported.
        """
        if choice is None:
            from saecache_rl.engines.vllm.plugin import choice_of_environment

            choice = choice_of_environment()
        own = kv_cache_coordinator.BlockPool
        kv_cache_coordinator.BlockPool = PolicyBlockPool
        try:
            super().__init__(*args, **kwargs)
        finally:
            kv_cache_coordinator.BlockPool = own
        if not self.enable_caching:
            logger.warning("saecache_rl: prefix caching is off, so there is nothing to evict; vLLM runs as it is")
            return
        check_supported(self.coordinator)
        block_size = self.coordinator.single_type_managers[0].block_size
        self.block_pool.serve(Serving(choice, self.block_pool.num_gpu_blocks - 1, block_size))
        logger.info(
            "saecache_rl: agent %s (policy %s) rules the eviction of %d KV blocks of %d tokens; token types: %s",
            choice.agent.name,
            choice.agent.policy.name,
            self.block_pool.num_gpu_blocks - 1,
            block_size,
            "from hints only" if choice.template is None else choice.template.name,
        )

    @property
    def serving(self) -> Serving | None:
        """What rules the pool; None where prefix caching is off."""
        return self.block_pool.serving

    def close(self) -> None:
        """The engine shuts down; the agent is saved, if it has a file."""
        if self.serving is not None:
            self.serving.close()

    def allocate_slots(self, request: Any, *args: Any, **kwargs: Any) -> KVCacheBlocks | None:
        """See vLLM."""
        pool = self.block_pool
        pool.allocating = None if pool.serving is None else request
        try:
            return super().allocate_slots(request, *args, **kwargs)
        finally:
            pool.allocating = None

    def _leave(self, request: Any) -> tuple[Any, bool]:
        """Who gives blocks back, and whether for good."""
        serving = self.block_pool.serving
        if serving is None:
            return None, False
        over = bool(request.is_finished())
        try:
            return (serving.end(request), True) if over else (serving.pause(request), False)
        except Exception as error:
            serving.failed("end of a request", error)
            return None, False

    def free(self, request: Any) -> None:
        """See vLLM."""
        pool = self.block_pool
        served, over = self._leave(request)
        pool.releasing, pool.over = served, over and served is not None
        try:
            super().free(request)
        finally:
            pool.releasing, pool.over = None, False

    def pop_blocks_for_free(self, request: Any) -> list[KVCacheBlock]:
        """See vLLM; the blocks come back to the pool later."""
        served, over = self._leave(request)
        blocks: list[KVCacheBlock] = super().pop_blocks_for_free(request)
        if served is not None and blocks:
            self.block_pool.owners[blocks[-1].block_id] = (served, over)
        return blocks
