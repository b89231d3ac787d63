"""SAECache minus LRU as each number of a generated workload moves 20 % down and up.

    python scripts/sensitivity.py agentic_shift

Every variant is drawn from the same seed and gets its own `auto` capacity. A row a variant: hit ratios in percent and
their difference in points. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

from omegaconf import DictConfig

from saecache_rl.cache.policies.lru import LRU
from saecache_rl.configured import make
from saecache_rl.engines.capacity import auto_capacity
from saecache_rl.engines.simulator import Simulator
from saecache_rl.envs.tuning import PrefixCacheTuningEnv
from saecache_rl.workloads import catalogue

#: Options that are no statistic of the traffic.
FIXED = {"requests", "seed", "block_size"}


def numbers(node: DictConfig, prefix: str = "") -> Iterator[tuple[str, float]]:
    """Every numeric option below a node, with its dotted name."""
    for key, value in node.items():
        if isinstance(value, DictConfig):
            yield from numbers(value, f"{prefix}{key}.")
        elif isinstance(value, int | float) and not isinstance(value, bool) and str(key) not in FIXED:
            yield f"{prefix}{key}", float(value)


@dataclass(frozen=True)
class Row:
    """One variant's result; hit ratios of prompt tokens."""

    variant: str
    num_blocks: int
    lru: float
    saecache: float


def measure(workload: str, override: str) -> Row | str:
    """Serve one variant under LRU and under the learning SAECache; a text says why it can't be drawn."""
    try:
        trace = catalogue.make(workload, *([override] if override else []))
    except ValueError as error:
        return f"{override}: {error}"
    num_blocks = auto_capacity(trace)
    lru = Simulator(trace, LRU(), num_blocks).serve(trace.num_requests).token_hit_ratio
    agent, predictor = make("agent", "saecache"), make("predictor", "logistic")
    env = PrefixCacheTuningEnv(trace, num_blocks=num_blocks, policy=agent.policy, predictor=predictor)
    _, info = env.reset(seed=0)
    agent.reset(0)
    over = False
    while not over:
        _, reward, _, over, info = env.serve(agent.act(info["stats"]))
        agent.observe(info["stats"], float(reward))
    hits = float(env.engine.hit_tokens.sum() / trace.prompt_tokens.sum(dtype="int64"))
    return Row(override or "as it is", num_blocks, lru, hits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", nargs="?", default="agentic_shift")
    arguments = parser.parse_args()
    variants = [""]
    for name, value in numbers(catalogue.options(arguments.workload)):
        for factor in (0.8, 1.2):
            moved = round(value * factor, 6)
            if float(value).is_integer() and value >= 10:
                moved = round(moved)
            variants.append(f"{name}={moved}")
    rows = []
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(measure, arguments.workload, v) for v in variants]
        for job in jobs:
            row = job.result()
            if isinstance(row, str):
                print(f"not possible: {row}")
                continue
            rows.append(row)
            difference = 100 * (row.saecache - row.lru)
            print(
                f"{row.variant:55} {row.num_blocks:7,} blocks   LRU {100 * row.lru:6.2f}   "
                f"SAECache {100 * row.saecache:6.2f}   {difference:+.2f}",
                flush=True,
            )
    gains = sorted((100 * (r.saecache - r.lru), r.variant) for r in rows)
    result = {
        "variants": len(rows),
        "lowest_points": round(gains[0][0], 2),
        "lowest": gains[0][1],
        "median_points": round(gains[len(gains) // 2][0], 2),
        "highest_points": round(gains[-1][0], 2),
        "highest": gains[-1][1],
        "below_lru": sum(g < 0 for g, _ in gains),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
