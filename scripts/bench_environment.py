"""Steps a second of the eviction environment, beside Gymnasium's CartPole and an environment that does nothing.

    python scripts/bench_environment.py --workload agentic --requests 2000

All are made by `gymnasium.make`, with the wrappers that it adds. The eviction environment takes LRU's action, with
either kind of victim; CartPole's are drawn beforehand; the one that does nothing has the eviction environment's spaces
and copies an observation and a mask, the least that a step can return. One thread, processor time, resets not counted;
sides alternate; medians of five rounds of at least a second each. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import Any

import gymnasium
import numpy as np

import saecache_rl  # noqa: F401 registers the environments
from saecache_rl.envs import EvictionLayout
from saecache_rl.errors import InputError
from saecache_rl.workloads.catalogue import make

ROUNDS = 5
SECONDS = 1.0
ID = "SAECache/PrefixCacheEviction-v0"
PEERS = ("cartpole", "nothing")


class Nothing(gymnasium.Env[Any, Any]):
    """Returns the same observation again and again; an episode has a hundred thousand steps."""

    def __init__(self, candidates: int) -> None:
        self.observation_space = EvictionLayout.of(candidates).box()
        self.action_space = gymnasium.spaces.Discrete(candidates)
        self._observation = np.zeros(self.observation_space.shape, np.float32)
        self._mask = np.ones(candidates, np.int8)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin to count."""
        super().reset(seed=seed)
        self._steps = 0
        return self._observation.copy(), {"action_mask": self._mask.copy()}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Count."""
        self._steps += 1
        return self._observation.copy(), 0.0, False, self._steps == 100_000, {"action_mask": self._mask.copy()}


def per_second(env: gymnasium.Env[Any, Any], actions: list[int]) -> float:
    """Steps a second, resets not counted."""
    env.reset(seed=0)
    steps, spent = 0, 0.0
    while spent < SECONDS:
        over, begin = False, time.process_time()
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            steps += 1
            if terminated or truncated:
                over = True
                break
        spent += time.process_time() - begin
        if over:
            env.reset()
    return steps / spent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="agentic", help="a generated workload of conf/workload")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--candidates", type=int, default=16)
    given = parser.parse_args()
    try:
        trace = make(given.workload, f"requests={given.requests}")
        sides = {v: gymnasium.make(ID, workload=trace, candidates=given.candidates, victim=v) for v in ("run", "block")}
    except InputError as error:
        print(f"bench_environment: {error}", file=sys.stderr)
        return 2
    gymnasium.register("Nothing-v0", entry_point=Nothing)
    sides["cartpole"] = gymnasium.make("CartPole-v1")
    sides["nothing"] = gymnasium.make("Nothing-v0", candidates=given.candidates)
    drawn = np.random.default_rng(0).integers(2, size=2000).tolist()
    rates: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(ROUNDS):
        for side, env in sides.items():
            rates[side].append(per_second(env, drawn if side == "cartpole" else [0] * 2000))
    median = {side: statistics.median(values) for side, values in rates.items()}
    for side, values in rates.items():
        print(f"{side:8} {median[side]:9,.0f} steps a second ({min(values):,.0f} to {max(values):,.0f})")
    result = {f"{side}_steps_per_second": round(value) for side, value in median.items()}
    ratios = {f"{v}_ratio_to_{peer}": round(median[v] / median[peer], 3) for v in ("run", "block") for peer in PEERS}
    print(json.dumps(result | ratios))
    return 0


if __name__ == "__main__":
    sys.exit(main())
