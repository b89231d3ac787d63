"""Train the predictor of continuation on a workload, and score it beside turn count alone.

    python -m saecache_rl.train_predictor +workload=agentic_shift

The result, predictor.npz, loads into a run: predictor=trained predictor.path=predictor.npz.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from saecache_rl import runs
from saecache_rl.characterization.measured import sessions_of
from saecache_rl.cli import command
from saecache_rl.errors import InputError
from saecache_rl.predictor.fitting import Recipe, Scores, Split, by_session, by_time, score, train, turn_count
from saecache_rl.predictor.trained import Weights
from saecache_rl.settings import TrainPredictorSettings, write
from saecache_rl.tracking.terminal import print_table
from saecache_rl.workloads.sessions import Sessions
from saecache_rl.workloads.trace import Trace


def evaluate(trace: Trace, sessions: Sessions, split: Split, recipe: Recipe) -> dict[str, Scores]:
    """Train each predictor on the split's one part and score it on the other, by name.

    Raises:
        InputError: one of the parts is empty, or has but one outcome to learn from.
    """
    labels = split.labels[split.train]
    if not split.test.any() or not labels.any() or labels.all():
        raise InputError(
            f"{trace.name}: split {split.name}, nothing to learn or to test: {int(split.train.sum())} requests to "
            f"train on, {int(labels.sum())} of them went on, {int(split.test.sum())} to test on; take more requests, "
            f"another test_share, or a horizon_seconds well below the trace's {trace.arrival[-1]:.0f} s"
        )
    truth = split.labels[split.test]

    def scored(predicted: Any) -> Scores:
        return score(np.asarray(predicted)[split.test], truth)

    rate = float(labels.mean())
    found = {
        "base rate": scored(np.full(trace.num_requests, rate)),
        "turn count": scored(turn_count(sessions, split.train, split.labels)),
    }
    plain = train(trace, sessions, split.train, split.labels, recipe._replace(buckets=0))
    found["request figures"] = scored(plain.predict(trace, sessions))
    if recipe.buckets:
        weights = train(trace, sessions, split.train, split.labels, recipe)
        found["figures and words"] = scored(weights.predict(trace, sessions))
    return found


def run(settings: TrainPredictorSettings, folder: Path) -> dict[str, Any]:
    """Train, score and leave predictor.npz and scores.json in `folder`, which exists.

    Raises:
        InputError: the workload can't be had as asked, or there is nothing to learn from it.
    """
    trace = runs.make_trace(settings.workload, settings.seed if settings.reseed_workload else None)
    if settings.resume is None:
        write(settings, folder)
    sessions = sessions_of(trace, settings.sessions)
    buckets = settings.text_buckets if trace.words is not None else 0
    recipe = Recipe(buckets, settings.epochs, settings.step, settings.penalty, settings.seed)
    splits = [
        by_session(trace, sessions, settings.horizon_seconds, settings.test_share, settings.seed),
        by_time(trace, sessions, settings.horizon_seconds, settings.test_share),
    ]
    results: dict[str, Any] = {
        "workload": trace.name,
        "sessions": sessions.source,
        "requests": trace.num_requests,
        "text_buckets": buckets,
        "horizon_seconds": settings.horizon_seconds,
        "splits": {},
    }
    for split in splits:
        scores = evaluate(trace, sessions, split, recipe)
        results["splits"][split.name] = {
            "train": int(split.train.sum()),
            "test": int(split.test.sum()),
            "not_known_in_time": split.dropped,
            "went_on": float(split.labels[split.test].mean()),
            "scores": {name: s._asdict() for name, s in scores.items()},
        }
        title = f"{trace.name}, split {split.name}: {split.train.sum():,} to train on, {split.test.sum():,} to test on"
        head = ["", "F1", "MCC", "ln loss", "Brier", "calibration error"]
        figures = [
            [name, *(f"{v:.3f}" for v in (s.f1, s.mcc, s.log_loss, s.brier, s.calibration_error))]
            for name, s in scores.items()
        ]
        print_table(title, head, figures)
    final = _final(trace, sessions, splits[0], recipe)
    final.save(folder / "predictor.npz", trace.name)
    runs.write_json(folder / "scores.json", results)
    what = (
        f"request figures and {buckets} buckets of words" if buckets else "request figures; the workload has no texts"
    )
    print(f"trained on {what}; use it with: predictor=trained predictor.path={folder / 'predictor.npz'}")
    return results


def _final(trace: Trace, sessions: Sessions, split: Split, recipe: Recipe) -> Weights:
    """Train on every request whose label is known."""
    return train(trace, sessions, split.train | split.test, split.labels, recipe)


@command("train_predictor", TrainPredictorSettings)
def main(settings: TrainPredictorSettings, folder: Path) -> float:
    """Train and score into `folder`; the number for sweeps is the best MCC, split by session."""
    results = run(settings, folder)
    print(folder)
    return max(float(s["mcc"]) for s in results["splits"]["by session"]["scores"].values())


if __name__ == "__main__":
    main()
