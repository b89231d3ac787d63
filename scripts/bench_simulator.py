"""Block accesses a second of the simulator, beside libCacheSim's LRU on the same accesses in the same run.

libCacheSim (PyPI `libcachesim`) runs its compiled loop over the whole trace, read beforehand into its binary format;
the simulator serves the same requests, prompt blocks only, so that both look at the same blocks in the same order.
One thread each. The sides alternate; each timed run repeats the trace until it lasts a second or more; medians of
five.

    python scripts/bench_simulator.py --mooncake conversation_trace.jsonl.gz --claude-code traces/

Without these files the generated workloads stand in for them, and the output says so. The last line is one JSON object;
its ratios are geometric means over the real traces (or their stand-ins), one-block prompts apart.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from saecache_rl.cache.policies.hazard.policy import GuardedHazard
from saecache_rl.cache.policies.lru import LRU
from saecache_rl.cache.policies.saecache import SAECache
from saecache_rl.cache.policy import Policy
from saecache_rl.engines.capacity import auto_capacity
from saecache_rl.engines.simulator import Simulator
from saecache_rl.workloads.catalogue import make
from saecache_rl.workloads.sessions import lineage
from saecache_rl.workloads.trace import Trace

ROUNDS = 5
SHORTEST = 1.0  # seconds
WINDOW = 100  # requests, as `train` serves them


def one_block_prompts(requests: int = 300_000, distinct: int = 100_000, seed: int = 0) -> Trace:
    """Every block is a leaf: prompts of one block, Zipf-popular (exponent 0.9)."""
    rng = np.random.default_rng(seed)
    weights = np.arange(1, distinct + 1) ** -0.9
    drawn = rng.choice(distinct, requests, p=weights / weights.sum())
    _, first, blocks = np.unique(drawn, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int32)
    rank[np.argsort(first)] = np.arange(len(first), dtype=np.int32)
    zeros, ids = np.zeros(requests, np.int32), len(first)
    return Trace(
        block_size=16,
        arrival=np.arange(requests) * 0.05,
        session=zeros - 1,
        turn=zeros - 1,
        prompt_tokens=zeros + 17,
        output_tokens=zeros + 1,
        salt=zeros,
        flags=zeros.astype(np.uint8),
        phase=zeros.astype(np.uint8),
        prompt_start=np.arange(requests + 1, dtype=np.int64),
        prompt_blocks=rank[blocks.reshape(-1)],
        generated_start=np.zeros(requests + 1, np.int64),
        generated_blocks=np.empty(0, np.int32),
        parent=np.full(ids, -1, np.int32),
        offset=np.zeros(ids, np.int32),
        token_type=(np.arange(ids) % 7).astype(np.uint8),
        name="one_block_prompts",
    )


def libcachesim_run(trace: Trace, num_blocks: int, folder: Path) -> Callable[[], float]:
    """Return a function that runs LRU over the trace's blocks once and returns its seconds."""
    import libcachesim

    records = np.zeros(len(trace.prompt_blocks), [("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next", "<i8")])
    records["id"] = trace.prompt_blocks
    records["id"] += 1
    records["size"] = 1
    records["next"] = -2
    file = folder / f"{trace.name}.oracleGeneral"
    records.tofile(file)

    def once() -> float:
        # A new reader each time: a reader that has reached the end keeps its place.
        reader = libcachesim.TraceReader(str(file), libcachesim.TraceType.ORACLE_GENERAL_TRACE)
        cache = libcachesim.LRU(cache_size=num_blocks)
        begin = time.perf_counter()
        cache.process_trace(reader)
        return time.perf_counter() - begin

    return once


def simulator_run(trace: Trace, policy: Policy, num_blocks: int) -> Callable[[], float]:
    """Return a function that serves the whole trace once, window by window, and returns its seconds."""
    simulator = Simulator(trace, policy, num_blocks, lineage(trace))

    def once() -> float:
        simulator.reset()
        begin = time.perf_counter()
        while not simulator.done:
            simulator.serve(WINDOW)
        return time.perf_counter() - begin

    return once


def repeated(once: Callable[[], float]) -> float:
    """Seconds for one pass, from passes that last `SHORTEST` together."""
    total, passes = 0.0, 0
    while total < SHORTEST:
        total += once()
        passes += 1
    return total / passes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mooncake", type=Path, help="conversation_trace.jsonl, plain or .gz")
    parser.add_argument("--claude-code", type=Path, help="folder of kv-cache-tester sessions")
    parser.add_argument("--sessions", type=int, default=60, help="Claude Code sessions to draw (default 60)")
    arguments = parser.parse_args()
    mooncake = make("mooncake", f"path={arguments.mooncake}") if arguments.mooncake else make("chat")
    if arguments.claude_code:
        options = (f"path={arguments.claude_code}", f"sessions={arguments.sessions}", "generated=none")
        claude_code = make("kv_cache_tester", *options)
    else:
        claude_code = make("agentic")
    real = [mooncake, claude_code]
    if not (arguments.mooncake and arguments.claude_code):
        print("a real trace was not given: a generated workload stands in for it")
    ratios: dict[str, list[float]] = {"lru": [], "saecache": [], "adaptive": []}
    peer_rates = []
    with tempfile.TemporaryDirectory() as temporary:
        for trace in [*real, one_block_prompts()]:
            if len(trace.generated_blocks):
                trace = replace(trace.without_generated(), name=trace.name)
            num_blocks = auto_capacity(trace)
            accesses = len(trace.prompt_blocks)
            sides = {
                "libcachesim": libcachesim_run(trace, num_blocks, Path(temporary)),
                "lru": simulator_run(trace, LRU(), num_blocks),
                "saecache": simulator_run(trace, SAECache(), num_blocks),
                "adaptive": simulator_run(trace, GuardedHazard(), num_blocks),
            }
            for once in sides.values():
                once()
            rounds: dict[str, list[float]] = {side: [] for side in sides}
            for _ in range(ROUNDS):
                for side, once in sides.items():
                    rounds[side].append(accesses / repeated(once) / 1e6)
            rate = {side: statistics.median(values) for side, values in rounds.items()}
            print(f"{trace.name}: {accesses:,} block accesses, {num_blocks:,} blocks")
            for side, value in rate.items():
                low, high = min(rounds[side]), max(rounds[side])
                print(
                    f"  {side:12} {value:7.2f} million/s (min {low:.2f}, max {high:.2f})"
                    f"  {value / rate['libcachesim']:6.2f} x libCacheSim's LRU"
                )
            if trace.name != "one_block_prompts":
                peer_rates.append(rate["libcachesim"])
                for side in ratios:
                    ratios[side].append(rate[side] / rate["libcachesim"])
    result = {f"{side}_ratio": round(statistics.geometric_mean(values), 2) for side, values in ratios.items()}
    result["libcachesim_millions_per_second"] = round(statistics.geometric_mean(peer_rates), 2)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
