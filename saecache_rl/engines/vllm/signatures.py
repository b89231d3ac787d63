"""The parts of vLLM that the plug-in builds on, checked when it starts: a part that has changed is refused by name."""

from __future__ import annotations

import inspect
from typing import Any

from saecache_rl.engines.vllm.needs import need_vllm
from saecache_rl.errors import InputError

SUPPORTED = "0.32"

#: Module, class, method and its parameters after `self`, as vLLM 0.32.0 has them.
EXPECTED: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("vllm.v1.core.block_pool", "BlockPool", "get_new_blocks", ("num_blocks",)),
    ("vllm.v1.core.block_pool", "BlockPool", "touch", ("blocks",)),
    (
        "vllm.v1.core.block_pool",
        "BlockPool",
        "cache_full_blocks",
        (
            "request",
            "blocks",
            "num_cached_blocks",
            "num_full_blocks",
            "block_size",
            "kv_cache_group_id",
            "block_mask",
        ),
    ),
    ("vllm.v1.core.block_pool", "BlockPool", "free_blocks", ("ordered_blocks",)),
    ("vllm.v1.core.block_pool", "BlockPool", "unpin_blocks", ("blocks", "on_reuse")),
    ("vllm.v1.core.block_pool", "BlockPool", "evict_blocks", ("block_ids",)),
    ("vllm.v1.core.block_pool", "BlockPool", "reset_prefix_cache", ()),
    ("vllm.v1.core.block_pool", "BlockPool", "get_cached_block", ("block_hash", "kv_cache_group_ids")),
    ("vllm.v1.core.block_pool", "BlockPool", "_maybe_evict_cached_block", ("block",)),
    ("vllm.v1.core.block_pool", "BlockHashToBlockMap", "get_one_block", ("key",)),
    ("vllm.v1.core.block_pool", "BlockHashToBlockMap", "insert", ("key", "block")),
    ("vllm.v1.core.block_pool", "BlockHashToBlockMap", "pop", ("key", "block_id")),
    ("vllm.v1.core.kv_cache_utils", "FreeKVCacheBlockQueue", "popleft_n", ("n",)),
    ("vllm.v1.core.kv_cache_utils", "FreeKVCacheBlockQueue", "get_all_free_blocks", ()),
    ("vllm.v1.core.kv_cache_utils", "FreeKVCacheBlockQueue", "prepend_n", ("blocks",)),
    ("vllm.v1.core.block_pool", "BlockPool", "_notify_reuse", ("blocks",)),
    (
        "vllm.v1.core.kv_cache_manager",
        "KVCacheManager",
        "allocate_slots",
        (
            "request",
            "num_new_tokens",
            "num_new_computed_tokens",
            "new_computed_blocks",
            "num_lookahead_tokens",
            "num_external_computed_tokens",
            "delay_cache_blocks",
            "num_encoder_tokens",
            "full_sequence_must_fit",
            "reserved_blocks",
            "has_scheduled_reqs",
            "skip_zeroing_group_ids",
        ),
    ),
    (
        "vllm.v1.core.sched.scheduler",
        "Scheduler",
        "update_from_output",
        ("scheduler_output", "model_runner_output"),
    ),
    ("vllm.v1.worker.worker_base", "WorkerWrapperBase", "initialize_from_config", ("kv_cache_configs",)),
    ("vllm.v1.core.kv_cache_manager", "KVCacheManager", "free", ("request",)),
    ("vllm.v1.core.sched.scheduler", "Scheduler", "has_finished_requests", ()),
    ("vllm.v1.core.sched.scheduler", "Scheduler", "shutdown", ()),
    (
        "vllm.v1.metrics.loggers",
        "StatLoggerManager",
        "record",
        ("scheduler_stats", "iteration_stats", "mm_cache_stats", "engine_idx"),
    ),
    ("vllm.v1.core.kv_cache_manager", "KVCacheManager", "pop_blocks_for_free", ("request",)),
)

#: Module, class, what makes one, and its attributes that the short ways read or set.
ATTRIBUTES: tuple[tuple[str, str, tuple[Any, ...], tuple[str, ...]], ...] = (
    ("vllm.v1.core.block_pool", "BlockHashToBlockMap", (), ("_cache",)),
    (
        "vllm.v1.core.kv_cache_utils",
        "KVCacheBlock",
        (0,),
        ("ref_cnt", "_block_hash", "_block_hash_num_tokens", "prev_free_block", "next_free_block", "is_null"),
    ),
)


def check_signatures(version: str | None = None, classes: dict[str, Any] | None = None) -> None:
    """Compare vLLM's methods with what the plug-in expects.

    Args:
        version: vLLM's; None: of the one that is installed.
        classes: classes by name, to check in the place of vLLM's own.

    Raises:
        InputError: vLLM is missing, or a method is missing or takes other parameters; names version and method.
    """
    if version is None:
        need_vllm()
        from vllm.version import __version__

        version = str(__version__)
    for module, owner, method, expected in EXPECTED:
        found = classes.get(owner) if classes else None
        if found is None:
            found = getattr(__import__(module, fromlist=[owner]), owner, None)
        function = getattr(found, method, None)
        if function is None:
            raise InputError(
                f"vLLM {version} has no {owner}.{method}, which saecache_rl builds on; it supports vLLM {SUPPORTED}"
            )
        parameters = tuple(inspect.signature(function).parameters)[1:]
        if parameters != expected:
            raise InputError(
                f"vLLM {version}: {owner}.{method} takes ({', '.join(parameters)}), but saecache_rl knows "
                f"({', '.join(expected)}); it supports vLLM {SUPPORTED}"
            )
    for module, owner, arguments, names in ATTRIBUTES:
        found = classes.get(owner) if classes else None
        made = (found or getattr(__import__(module, fromlist=[owner]), owner))(*arguments)
        for name in names:
            if not hasattr(made, name):
                raise InputError(
                    f"vLLM {version}: {owner} has no {name}, which saecache_rl builds on; it supports vLLM {SUPPORTED}"
                )
