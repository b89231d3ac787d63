"""What the tests of the live block pool share."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from saecache_rl.engines.vllm.needs import INSTALL

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch and vLLM warn of themselves when they are first imported
    pytest.importorskip("vllm", reason=f"needs vLLM: {INSTALL}", exc_type=ImportError)
    from vllm import SamplingParams  # noqa: F401

    import saecache_rl.engines.vllm.scheduler  # noqa: F401

from saecache_rl.cache.policy import Policy
from saecache_rl.configured import by_name
from saecache_rl.engines.vllm.replay import Replay
from saecache_rl.workloads.trace import Trace
from tests.support import tiny_trace

BLOCK = 16
#: What vLLM needs on a CPU; and on any machine, to start without the network.
ENVIRONMENT: dict[str, str] = {**by_name("engine", "vllm_cpu_tiny")["environment"], "VLLM_NO_USAGE_STATS": "1"}


def replay(policy: Policy | None, num_blocks: int, trace: Trace | None = None, **options: Any) -> Replay:
    return Replay(tiny_trace(0, 20, BLOCK) if trace is None else trace, num_blocks, policy, **options)


def make_request(on: Replay, name: str, tokens: list[int], extra: dict[str, Any] | None = None, **more: Any) -> Any:
    from vllm import SamplingParams
    from vllm.v1.request import Request

    return Request(
        request_id=name,
        prompt_token_ids=tokens,
        sampling_params=SamplingParams(max_tokens=8, extra_args=extra),
        pooling_params=None,
        block_hasher=on.hasher,
        **more,
    )


def start(manager: Any, request: Any) -> int:
    """Schedule a request's whole prompt; its hit tokens."""
    from vllm.v1.request import RequestStatus

    blocks, hit_tokens, _ = manager.get_computed_blocks(request)
    assert manager.allocate_slots(request, request.num_tokens - hit_tokens, hit_tokens, blocks) is not None
    request.num_computed_tokens = request.num_tokens
    request.status = RequestStatus.RUNNING
    return int(hit_tokens)


def finish(manager: Any, request: Any, aborted: bool = False) -> None:
    from vllm.v1.request import RequestStatus

    request.status = RequestStatus.FINISHED_ABORTED if aborted else RequestStatus.FINISHED_STOPPED
    manager.free(request)


def once(manager: Any, request: Any) -> int:
    """Serve a request's prompt and end it; its hit tokens."""
    hit_tokens = start(manager, request)
    finish(manager, request)
    return hit_tokens


def check_agreement(manager: Any, dropped: bool = False) -> None:
    """Our slots say what vLLM's blocks say, and vLLM's queue is whole.

    Where a hash was `dropped` from a block in the queue, the order of the free ones is not vLLM's.
    """
    pool = manager.block_pool
    queue = pool.free_block_queue.get_all_free_blocks()
    assert len(queue) == pool.get_num_free_blocks() == sum(b.ref_cnt == 0 for b in pool.blocks[1:])
    cache = pool.serving.live.cache
    for block in pool.blocks[1:]:
        slot = cache.blocks[block.block_id - 1]
        assert slot["refs"] == block.ref_cnt
        assert (slot["identity"] >= 0) == (block.block_hash is not None)
    free = cache.free_slots[: cache.pool["free"][0]][::-1] + 1
    unhashed = [b.block_id for b in queue if b.block_hash is None]
    assert free.tolist() == unhashed or (dropped and sorted(free.tolist()) == sorted(unhashed))
    nodes = pool.serving.live._nodes
    resident = len({int(i) for i in cache.blocks["identity"] if i >= 0})
    assert len(nodes.free) - nodes.count[0] >= resident
    assert not pool.serving.counts.errors
