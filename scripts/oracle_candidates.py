"""What an oracle hits that may choose among k leaves only, by k and by what a choice evicts.

    python scripts/oracle_candidates.py mooncake path=conversation_trace.jsonl.gz
    python scripts/oracle_candidates.py agentic requests=2000

At each choice of `SAECache/PrefixCacheEviction-v0` it takes the candidate whose next use lies furthest ahead, the
deeper on a tie; at capacity `auto`. Beside it LRU and the exact optimum. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys

import numpy as np

from saecache_rl.cache.policies.lru import LRU
from saecache_rl.cache.policies.optimum import Optimum, next_uses, uses_ahead
from saecache_rl.engines.capacity import auto_capacity
from saecache_rl.engines.simulator import Simulator
from saecache_rl.engines.stepped import SteppedSimulator
from saecache_rl.errors import InputError
from saecache_rl.workloads.catalogue import make


def oracle(engine: SteppedSimulator) -> tuple[float, int]:
    """Serve the whole trace; return the token hit ratio and the number of choices."""
    uses = next_uses(engine.trace)
    choices, found = 0, engine.advance()
    while found:
        candidates = engine.candidates
        ahead = uses_ahead(engine.trace, uses, candidates, engine.position)
        furthest = np.flatnonzero(ahead == ahead.max())
        found = engine.advance(int(furthest[candidates["offset"][furthest].argmax()]))
        choices += 1
    return engine.stats().token_hit_ratio, choices


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", help="a name of conf/workload")
    parser.add_argument("overrides", nargs="*", help="its options, as requests=2000")
    parser.add_argument("--candidates", type=int, nargs="+", default=[4, 16, 64])
    given = parser.parse_args()
    try:
        trace = make(given.workload, *given.overrides)
        num_blocks = auto_capacity(trace)
    except InputError as error:
        print(f"oracle_candidates: {error}", file=sys.stderr)
        return 2
    result: dict[str, float | str] = {"workload": trace.name, "num_blocks": num_blocks}
    for policy in (LRU(), Optimum()):
        result[policy.name] = Simulator(trace, policy, num_blocks).serve(trace.num_requests).token_hit_ratio
        print(f"{policy.name}: {100 * result[policy.name]:.2f} %")
    for victim in ("run", "block"):
        for k in given.candidates:
            ratio, choices = oracle(SteppedSimulator(trace, num_blocks, k, victim == "run"))
            print(f"{victim}, {k} candidates: {100 * ratio:.2f} %, {choices:,} choices", flush=True)
            result[f"{victim}_{k}"] = ratio
    print(json.dumps({name: round(v, 4) if isinstance(v, float) else v for name, v in result.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
