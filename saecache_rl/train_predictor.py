"""Train the predictor of continuation on a workload, and score it beside turn count alone.

    python -m saecache_rl.train_predictor +workload=agentic_shift
    python -m saecache_rl.train_predictor +workload=W workload.path=FILE features=hidden model=FOLDER

The result, predictor.npz, loads into a run (predictor=trained predictor.path=predictor.npz) and into a live vLLM
(SAECACHE_PREDICTOR=predictor.npz).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from saecache_rl.characterization.measured import sessions_of
from saecache_rl.commands import runs
from saecache_rl.commands.cli import command
from saecache_rl.commands.settings import TrainPredictorSettings, write
from saecache_rl.errors import InputError
from saecache_rl.predictor.fitting import Recipe, Scores, Split, by_session, by_time, score, train, turn_count
from saecache_rl.predictor.models import CausalModel, EmbeddingModel, Floats, check_model
from saecache_rl.predictor.network import HIDDEN, Plan, train_network
from saecache_rl.predictor.vectors import Vectors
from saecache_rl.tracking.terminal import print_table
from saecache_rl.workloads.prompts import Prompts, keep_prompts
from saecache_rl.workloads.sessions import Sessions
from saecache_rl.workloads.trace import Trace

HIDDEN_STATES, EMBEDDINGS = "hidden states", "embedding of the latest text"


class Seen(NamedTuple):
    """What models make of the requests. vectors: (R, h) by name. model: the served one's name. left_out: and why."""

    vectors: Mapping[str, Floats]
    model: str
    left_out: Mapping[str, str]


NOTHING_SEEN = Seen({}, "", {})


def evaluate(
    trace: Trace, sessions: Sessions, split: Split, recipe: Recipe, seen: Seen = NOTHING_SEEN, plan: Plan | None = None
) -> dict[str, Scores]:
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
    for name, rows in seen.vectors.items():
        network = train_network(rows[split.train], labels, sessions.session[split.train], plan or Plan())
        found[name] = scored(network.predict(rows))
    return found


def _see(prompts: Prompts | None, name: str, folder: Path) -> Seen:
    """Run the served model over the prompts, and the embedding model over the texts where it is installed.

    Raises:
        InputError: there are no prompts, or the served model can't read them.
    """
    if prompts is None:
        raise InputError(f"features=hidden: {name} has no texts that a model could read; leave it out")
    model = CausalModel(folder)
    print(f"hidden states of {len(prompts.tokens):,} prompts, by {model.name} ({model.size} numbers each)", flush=True)
    vectors = {HIDDEN_STATES: model.hidden_states(prompts)}
    left_out = {}
    try:
        vectors[EMBEDDINGS] = EmbeddingModel().embeddings(prompts.texts)
    except InputError as error:
        left_out[EMBEDDINGS] = str(error)
        print(f"left out: {error}")
    return Seen(vectors, model.name, left_out)


def _served_tokenizer(settings: TrainPredictorSettings, folder: Path) -> None:
    """Have the workload cut into the served model's tokens.

    Raises:
        InputError: another tokenizer is asked for.
    """
    given = settings.workload.get("tokenizer")
    if given is None:
        return
    if given not in ("words", "characters") and (Path(given).expanduser().absolute()) not in (
        folder,
        folder / "tokenizer.json",
    ):
        raise InputError(
            f"workload.tokenizer={given}: features=hidden reads the prompts with {folder}'s own; leave it out"
        )
    settings.workload["tokenizer"] = str(folder)


def _load(settings: TrainPredictorSettings) -> tuple[Trace, Seen]:
    """Make the workload's trace, and what models make of it if they are asked."""
    seed = settings.seed if settings.reseed_workload else None
    if settings.features != "hidden":
        return runs.make_trace(settings.workload, seed), NOTHING_SEEN
    folder = check_model(settings.model).absolute()
    settings.model = str(folder)
    _served_tokenizer(settings, folder)
    with keep_prompts() as kept:
        trace = runs.make_trace(settings.workload, seed)
    return trace, _see(kept.prompts, trace.name, folder)


def run(settings: TrainPredictorSettings, folder: Path) -> dict[str, Any]:
    """Train, score and leave predictor.npz and scores.json in `folder`, which exists.

    Raises:
        InputError: the workload can't be had as asked, or there is nothing to learn from it.
    """
    trace, seen = _load(settings)
    if settings.resume is None:
        write(settings, folder)
    sessions = sessions_of(trace, settings.sessions)
    buckets = settings.text_buckets if trace.words is not None else 0
    recipe = Recipe(buckets, settings.epochs, settings.step, settings.penalty, settings.seed)
    plan = Plan(settings.epochs, settings.network_step, settings.seed)
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
        "model": seen.model or None,
        "left_out": dict(seen.left_out),
        "splits": {},
    }
    for split in splits:
        scores = evaluate(trace, sessions, split, recipe, seen, plan)
        results["splits"][split.name] = {
            "train": int(split.train.sum()),
            "test": int(split.test.sum()),
            "not_known_in_time": split.dropped,
            "went_on": float(split.labels[split.test].mean()),
            "scores": {name: s._asdict() for name, s in scores.items()},
        }
        _print(trace, split, scores)
    known = splits[0].train | splits[0].test  # every request whose label is known
    made = folder / "predictor.npz"
    if HIDDEN_STATES in seen.vectors:
        rows = seen.vectors[HIDDEN_STATES]
        network = train_network(
            rows[known], splits[0].labels[known], sessions.session[known], plan, HIDDEN, model=seen.model
        )
        network.save(made, trace.name)
        Vectors(rows, trace.digest, seen.model).save(folder / "vectors.npz")
    else:
        train(trace, sessions, known, splits[0].labels, recipe).save(made, trace.name)
    runs.write_json(folder / "scores.json", results)
    _advise(settings, buckets, made, seen)
    return results


def _print(trace: Trace, split: Split, scores: Mapping[str, Scores]) -> None:
    title = f"{trace.name}, split {split.name}: {split.train.sum():,} to train on, {split.test.sum():,} to test on"
    head = ["", "F1", "MCC", "ln loss", "Brier", "calibration error"]
    rows = [
        [name, *(f"{v:.3f}" for v in (s.f1, s.mcc, s.log_loss, s.brier, s.calibration_error))]
        for name, s in scores.items()
    ]
    print_table(title, head, rows)


def _advise(settings: TrainPredictorSettings, buckets: int, made: Path, seen: Seen) -> None:
    """Say what was trained and how to use it."""
    use = f"use it with: predictor=trained predictor.path={made}"
    if HIDDEN_STATES in seen.vectors:
        vectors = made.with_name("vectors.npz")
        print(f"trained on hidden states of {seen.model}; in a vLLM that serves it: SAECACHE_PREDICTOR={made}")
        print(
            f"in a simulation of these requests {use} predictor.vectors={vectors} workload.tokenizer={settings.model}"
        )
        return
    what = (
        f"request figures and {buckets} buckets of words" if buckets else "request figures; the workload has no texts"
    )
    if settings.text_buckets == 0:
        what = "request figures"
    print(f"trained on {what}; {use}")


@command("train_predictor", TrainPredictorSettings)
def main(settings: TrainPredictorSettings, folder: Path) -> float:
    """Train and score into `folder`; the number for sweeps is the best MCC, split by session."""
    results = run(settings, folder)
    print(folder)
    return max(float(s["mcc"]) for s in results["splits"]["by session"]["scores"].values())


if __name__ == "__main__":
    main()
