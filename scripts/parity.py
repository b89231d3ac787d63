"""Replays workloads through the simulator and through vLLM's `KVCacheManager` over our pool, request by request.

    python scripts/parity.py chat agentic mooncake [--requests 20000] [--num-blocks N] [--path mooncake=FILE]

For LRU (our pool, and vLLM's own) and SAECache it prints the requests, those whose cached tokens or evicted blocks, in
their order, differ, and the evictions. Sessions and token types go along as hints. Needs vLLM, no model. Exit code 1 if
anything differs.
"""

from __future__ import annotations

import argparse
import sys

from saecache_rl.cache.policies.lru import LRU
from saecache_rl.cache.policies.saecache import SAECache
from saecache_rl.cache.policy import Policy
from saecache_rl.configured import by_name, make
from saecache_rl.engines.capacity import auto_capacity
from saecache_rl.engines.simulator import Simulator
from saecache_rl.engines.vllm.recorded import Recorded, victims_by_request
from saecache_rl.engines.vllm.replay import Replay
from saecache_rl.errors import InputError
from saecache_rl.workloads.trace import Trace

SIDES: tuple[tuple[str, Policy, bool], ...] = (
    ("vLLM's own pool", LRU(), True),
    ("LRU", LRU(), False),
    ("SAECache", SAECache(), False),
)


def differing(trace: Trace, num_blocks: int, policy: Policy, own: bool) -> tuple[list[int], int, int]:
    """Numbers of the requests that differ; hit blocks; evictions."""
    room = int(trace.request_blocks.sum())
    simulator = Simulator(trace, Recorded(policy, room), num_blocks)
    simulator.serve(trace.num_requests)
    victims = victims_by_request(simulator)
    replay = Replay(trace, num_blocks, None if own else policy, simulator.sessions)
    found = []
    for r in range(trace.num_requests):
        step = replay.serve(r)
        if step.hit_blocks != simulator.hit_blocks[r] or step.evicted != victims[r]:
            found.append(r)
    return found, int(simulator.hit_blocks.sum()), simulator.evictions


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="+", help="names of conf/workload")
    parser.add_argument("--requests", type=int, default=None, help="requests of each; default: the workload's own")
    parser.add_argument("--num-blocks", type=int, default=None, help="capacity; default: auto")
    parser.add_argument("--path", action="append", default=[], metavar="NAME=FILE", help="where a real trace is")
    arguments = parser.parse_args()
    paths = dict(path.split("=", 1) for path in arguments.path)
    wrong = 0
    for name in arguments.workloads:
        try:
            target = {key: value for key, value in by_name("workload", name).items() if key != "num_blocks"}
            if arguments.requests is not None:
                target["requests"] = arguments.requests
            if name in paths:
                target["path"] = paths[name]
            trace: Trace = make("workload", target)
        except InputError as error:
            print(error, file=sys.stderr)
            return 2
        num_blocks = arguments.num_blocks or auto_capacity(trace)
        for side, policy, own in SIDES:
            found, hits, evictions = differing(trace, num_blocks, policy, own)
            print(
                f"{name}: {side}: {trace.num_requests} requests, {num_blocks} blocks, {hits} hit blocks, "
                f"{evictions} evictions, {len(found)} requests differ" + (f", first {found[:5]}" if found else ""),
                flush=True,
            )
            wrong += len(found)
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
