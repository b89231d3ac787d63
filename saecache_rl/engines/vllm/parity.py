"""The simulator and vLLM's `KVCacheManager` on the same requests: which differ in hits, or in a block evicted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from saecache_rl.cache.policies.lru import LRU
from saecache_rl.engines.simulator import Simulator
from saecache_rl.engines.stats import WindowStats
from saecache_rl.engines.vllm.recorded import Recorded, victims_by_request
from saecache_rl.engines.vllm.replay import Constant, Replay
from saecache_rl.engines.vllm.scale import scaled
from saecache_rl.workloads.trace import Trace


@dataclass(frozen=True)
class Comparison:
    """What came of it.

    Attributes:
        differing: numbers of the requests whose hit blocks, or blocks evicted in their order, differ.
        hit_blocks, evictions: the simulator's, over all requests.
        replay: vLLM's side, at its end.
    """

    differing: tuple[int, ...]
    hit_blocks: int
    evictions: int
    replay: Replay


def simulated(
    trace: Trace, num_blocks: int, agent: Any, window: int, continues: npt.NDArray[np.float64] | None = None
) -> tuple[Simulator, list[npt.NDArray[np.int64]]]:
    """A simulator that has served the trace under `agent`, and the blocks evicted for each request."""
    policy = Recorded(agent.policy, int(trace.request_blocks.sum()))
    simulator = Simulator(trace, policy, num_blocks, continues=continues)
    stats = WindowStats.empty()
    while not simulator.done:
        stats = simulator.serve(window, agent.act(stats))
        agent.observe(stats, stats.token_hit_ratio)
    return simulator, victims_by_request(simulator)


def compare(
    trace: Trace,
    num_blocks: int,
    agents: tuple[Any, Any] | None,
    window: int = 2**31,
    continues: npt.NDArray[np.float64] | None = None,
    **options: Any,
) -> Comparison:
    """Serve the trace on both sides, one request after another.

    Args:
        trace: the requests; a reply that it does not name is one token on both sides.
        num_blocks: capacity, vLLM's null block not counted.
        agents: one for each side, alike; None: LRU against vLLM's own pool.
        window: requests between two decisions.
        continues: (R,) the predictor's probability that a request's session goes on; None: never.
        options: of `Replay`.
    """
    ours, theirs = agents or (Constant(LRU()), None)
    trace = scaled(trace, trace.block_size, 2**31)
    simulator, victims = simulated(trace, num_blocks, ours, window, continues)
    replay = Replay(trace, num_blocks, theirs, simulator.sessions, window, continues=continues, **options)
    differing = []
    for r in range(trace.num_requests):
        step = replay.serve(r)
        if step.hit_blocks != simulator.hit_blocks[r] or step.evicted != tuple(victims[r].tolist()):
            differing.append(r)
    return Comparison(tuple(differing), int(simulator.hit_blocks.sum()), simulator.evictions, replay)
