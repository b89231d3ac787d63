"""Draw what the policy `hazard` has learned at the end of a trace: hazards by age, and the index curves made of them.

    python scripts/plot_hazard.py docs/images/hazard.png workload=mooncake path=conversation_trace.jsonl.gz

The segments that the policy still remembers are put into a few kinds; a line is the median of a kind.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import numpy.typing as npt

from saecache_rl.cache.policies.hazard import features as f
from saecache_rl.cache.policies.hazard.index import GROUP_ENDS, KINDS, make_curve
from saecache_rl.cache.policies.hazard.layout import BINS, GROUPS, view
from saecache_rl.cache.policies.hazard.learner import predict_additive
from saecache_rl.cache.policies.hazard.policy import Hazard
from saecache_rl.engines.capacity import auto_capacity
from saecache_rl.engines.simulator import Simulator
from saecache_rl.workloads.catalogue import make

Levels = npt.NDArray[np.uint8]
SAMPLE = 2000  # segments of a kind, the latest

#: Kinds of segments, by their levels.
SEGMENT_KINDS: dict[str, Callable[[Levels], npt.NDArray[np.bool_]]] = {
    "first turn, new blocks": lambda s: (s[:, f.LINEAGES] == 0) & (s[:, f.TURN] == 1),
    "second turn, new blocks": lambda s: (s[:, f.TURN] == 2) & (s[:, f.COUNT] == 1),
    "fifth turn or later, new blocks": lambda s: (s[:, f.TURN] >= 5) & (s[:, f.COUNT] == 1),
    "fifth turn or later, history": lambda s: (s[:, f.LINEAGES] == 0) & (s[:, f.TURN] >= 5) & (s[:, f.COUNT] > 2),
    "shared by 5 to 64 lineages": lambda s: (s[:, f.LINEAGES] >= 3) & (s[:, f.LINEAGES] <= 4),
    "shared by more": lambda s: s[:, f.LINEAGES] == 5,
}


def main() -> None:
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="PNG to write")
    parser.add_argument("workload", help="workload=NAME")
    parser.add_argument("options", nargs="*", help="options of the workload, name=value")
    parser.add_argument("--num-blocks", type=int, help="capacity (default: auto)")
    arguments = parser.parse_args()
    trace = make(arguments.workload.removeprefix("workload="), *arguments.options)
    simulator = Simulator(trace, Hazard(), arguments.num_blocks or auto_capacity(trace))
    simulator.serve(trace.num_requests)
    state = view(simulator.cache.ints)
    mask = int(state.head["features"][0])
    made = np.flatnonzero(state.segments["number"] >= 0)
    made = made[np.argsort(state.segments["number"][made])]
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.5), constrained_layout=True)
    ages = np.concatenate([[0.25], 0.5 * np.exp(np.arange(BINS - 1) / 3.0)])
    ids, room, curves = np.zeros(64, np.uint16), np.zeros(GROUPS + 2 * BINS), np.zeros((1, BINS), np.float32)
    for name, belongs in SEGMENT_KINDS.items():
        rows = made[belongs(state.levels[made])][-SAMPLE:]
        if len(rows) < 20:
            continue
        hazards, worths = [], []
        for row in rows:
            count = f.features_of(state.levels, row, mask, ids)
            predict_additive(simulator.cache.reals, ids, count, room)
            hazards.append(room[:GROUPS].copy())
            make_curve(room, KINDS["gittins"], False, curves, 0)
            worths.append(curves[0].copy())
        left.plot(GROUP_ENDS, np.median(hazards, axis=0), marker=".", label=name)
        right.plot(ages, np.median(worths, axis=0), label=name)
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_xlabel("seconds since the last access")
        axes.grid(alpha=0.3)
    left.set_ylabel("P(used in this age group | not before)")
    left.set_ylim(0, None)
    left.set_title(f"{trace.name}: learned hazards")
    left.legend(fontsize=8)
    right.set_yscale("log")
    right.set_ylabel("index: uses per block-second")
    right.set_title("what a block is worth")
    arguments.file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(arguments.file, dpi=110)
    print(arguments.file)


if __name__ == "__main__":
    main()
