"""Cost of the live block pool: time per request of 256 blocks (match, take, free), ours over vLLM's own.

    python scripts/bench_block_pool.py [--requests 10] [--rounds 100]

Both sides serve the same requests through vLLM's own `KVCacheManager`: get_computed_blocks, allocate_slots, free. Half
of each prompt is shared with an earlier request, the cache is full, so that each request evicts 128 blocks. Requests
are hashed beforehand. Sides alternate after a few requests, in an order that turns. Time is that of the thread on the
processor, so that other work on the machine counts only by what it takes of caches; a ratio is the median over rounds
of the ratios within each, and the least microseconds of each side stand beside their medians. Needs vLLM. The last
line is JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from typing import Any

import numpy as np

from saecache_rl.cache.policies.hazard.policy import GuardedHazard
from saecache_rl.cache.policies.lru import LRU
from saecache_rl.cache.policies.saecache import SAECache
from saecache_rl.cache.policy import Policy
from saecache_rl.engines.vllm.replay import Replay
from saecache_rl.vocabulary import TokenType
from saecache_rl.workloads.trace import Trace

BLOCK, BLOCKS, SHARED = 16, 256, 128


def make_trace(requests: int, groups: int) -> Trace:
    """Requests of 256 full blocks and one token; the first 128 are those of one of `groups` prefixes."""
    generator = np.random.default_rng(0)
    prefix = np.arange(groups * SHARED, dtype=np.int32).reshape(groups, SHARED)
    group = generator.integers(0, groups, requests)
    own = groups * SHARED + np.arange(requests * SHARED, dtype=np.int32).reshape(requests, SHARED)
    chains = np.concatenate([prefix[group], own], axis=1)
    parent = np.full(groups * SHARED + requests * SHARED, -1, np.int32)
    parent[chains[:, 1:]] = chains[:, :-1]
    offset = np.zeros_like(parent)
    offset[chains] = np.arange(BLOCKS)
    kinds = np.where(offset < SHARED // 2, TokenType.SYSTEM, TokenType.USER).astype(np.uint8)
    zeros = np.zeros(requests, np.int32)
    trace = Trace(
        block_size=BLOCK,
        arrival=np.arange(requests, dtype=np.float64),
        session=zeros - 1,
        turn=zeros - 1,
        prompt_tokens=zeros + BLOCKS * BLOCK + 1,
        output_tokens=zeros + 1,
        salt=zeros,
        flags=zeros.astype(np.uint8),
        phase=zeros.astype(np.uint8),
        prompt_start=np.arange(requests + 1, dtype=np.int64) * BLOCKS,
        prompt_blocks=chains.reshape(-1),
        generated_start=np.zeros(requests + 1, np.int64),
        generated_blocks=np.empty(0, np.int32),
        parent=parent,
        offset=offset,
        token_type=kinds,
        name="bench",
    )
    trace.validate()
    return trace


def serve(manager: Any, requests: list[Any]) -> float:
    """Seconds for the pool's part of all requests."""
    from vllm.v1.request import RequestStatus

    begin = time.thread_time()
    for request in requests:
        blocks, hit_tokens, _ = manager.get_computed_blocks(request)
        request.status = RequestStatus.RUNNING
        manager.allocate_slots(request, request.num_prompt_tokens - hit_tokens, hit_tokens, blocks)
        request.status = RequestStatus.FINISHED_LENGTH_CAPPED
        manager.free(request)
    return time.thread_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10, help="requests a round")
    parser.add_argument("--rounds", type=int, default=100)
    arguments = parser.parse_args()
    count, rounds = arguments.requests, arguments.rounds
    first = 100  # fill the cache, and are not timed
    trace = make_trace(first + count * rounds, groups=16)
    sides: dict[str, Policy | None] = {"vllm": None, "lru": LRU(), "saecache": SAECache(), "adaptive": GuardedHazard()}
    replays = {name: Replay(trace, 8192, policy, events=False) for name, policy in sides.items()}
    micros: dict[str, list[float]] = {name: [] for name in sides}
    for replay in replays.values():
        serve(replay.manager, [replay.request(r)[0] for r in range(first)])
    gc.collect()
    gc.disable()
    for turn in range(rounds):
        names = list(sides)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            begin = first + turn * count
            requests = [replays[name].request(r)[0] for r in range(begin, begin + count)]
            micros[name].append(serve(replays[name].manager, requests) / count * 1e6)
    median = {name: statistics.median(values) for name, values in micros.items()}
    for name in sides:
        pool = replays[name].manager.block_pool
        print(
            f"{name}: {median[name]:.0f} microseconds a request (of {min(micros[name]):.0f} to {max(micros[name]):.0f})"
        )
        if name != "vllm":
            counts = pool.serving.counts
            print(
                f"  evictions {pool.serving.live.evictions}, fallbacks {counts.fallbacks}, errors {dict(counts.errors)}"
            )
    result: dict[str, float] = {}
    for name in list(sides)[1:]:
        ratios = [ours / vllms for ours, vllms in zip(micros[name], micros["vllm"], strict=True)]
        result[f"{name}_ratio"] = round(statistics.median(ratios), 3)
        result[f"{name}_ratio_of_least"] = round(min(micros[name]) / min(micros["vllm"]), 3)
    result |= {f"{name}_microseconds": round(value, 1) for name, value in median.items()}
    result |= {f"{name}_least_microseconds": round(min(values), 1) for name, values in micros.items()}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
