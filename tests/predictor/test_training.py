"""Training of the predictor: labels that don't leak, splits, scores, and weights that load into a run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from saecache_rl.errors import InputError
from saecache_rl.predictor.features import WordColumns, figures
from saecache_rl.predictor.fitting import Recipe, by_session, by_time, score, train, turn_count
from saecache_rl.predictor.trained import Trained, Weights
from saecache_rl.workloads.sessions import hint
from saecache_rl.workloads.trace import Trace
from tests.commands.support import QUIET, run, succeed
from tests.support import tiny_trace
from tests.workloads.samples import lines, load, said

RECIPE = Recipe(buckets=64, epochs=20, step=0.05, penalty=1e-4, seed=0)


def spoken(path: Path, count: int = 240) -> Trace:
    """Chats in which a question with "more" is always followed by another, and one with "thanks" ends it."""
    random = np.random.default_rng(0)
    talks = []
    for n in range(count):
        turns = int(random.integers(1, 5))
        texts = [t for k in range(turns) for t in (f"tell me more {n} {k}" if k < turns - 1 else f"thanks {n}", "well")]
        talks.append({"conversation_id": n, "conversation": said(*texts)})
    return load("lmsys", path, "session_rate=0.05", "gap_mu=3", text=lines(*talks))


def test_labels_are_what_is_known_in_time() -> None:
    trace = tiny_trace(requests=150)
    sessions = hint(trace)
    split = by_time(trace, sessions, 30.0, 0.3)
    cut = trace.arrival[split.test].min()
    assert (trace.arrival[split.train] + 30.0 < cut).all()
    assert (trace.arrival[split.test] + 30.0 <= trace.arrival[-1]).all()
    for r in np.flatnonzero(split.train | split.test):
        later = trace.arrival[(sessions.session == sessions.session[r]) & (np.arange(150) > r)]
        assert split.labels[r] == bool(len(later) and later[0] <= trace.arrival[r] + 30.0)
    # What comes after the cut changes no training label: those are settled in the part before it.
    early = int(np.flatnonzero(trace.arrival < cut)[-1]) + 1
    before = by_time(trace.head(early), hint(trace.head(early)), 30.0, 0.01)
    assert before.labels[split.train[:early].nonzero()[0]].tolist() == split.labels[split.train].tolist()


def test_a_session_is_wholly_on_one_side() -> None:
    trace = tiny_trace(requests=150)
    sessions = hint(trace)
    split = by_session(trace, sessions, 60.0, 0.4, seed=3)
    assert not set(sessions.session[split.train]) & set(sessions.session[split.test])
    again = by_session(trace, sessions, 60.0, 0.4, seed=3)
    assert (again.test == split.test).all()
    assert (by_session(trace, sessions, 60.0, 0.4, seed=4).test != split.test).any()


def test_words_tell_what_turn_count_cannot(tmp_path: Path) -> None:
    trace = spoken(tmp_path)
    sessions = hint(trace)
    split = by_session(trace, sessions, 600.0, 0.3, 0)
    truth = split.labels[split.test]
    words = train(trace, sessions, split.train, split.labels, RECIPE).predict(trace, sessions)
    turns = turn_count(sessions, split.train, split.labels)
    assert score(words[split.test], truth).mcc > 0.95
    assert score(turns[split.test], truth).mcc < 0.7


def test_scores_by_hand() -> None:
    predicted = np.array([0.9, 0.8, 0.3, 0.6, 0.1])
    happened = np.array([True, True, True, False, False])
    found = score(predicted, happened)
    # 2 true positives, 1 false positive, 1 false negative, 1 true negative.
    assert found.f1 == pytest.approx(2 * 2 / (2 * 2 + 1 + 1))
    assert found.mcc == pytest.approx((2 * 1 - 1 * 1) / np.sqrt(3 * 3 * 2 * 2))
    assert found.brier == pytest.approx(np.mean([0.01, 0.04, 0.49, 0.36, 0.01]))
    assert score(np.array([0.2] * 10), np.array([True] * 2 + [False] * 8)).calibration_error == pytest.approx(0.0)


def test_weights_survive_a_file_and_are_causal(tmp_path: Path) -> None:
    trace = spoken(tmp_path)
    sessions = hint(trace)
    everything = np.ones(trace.num_requests, bool)
    split = by_session(trace, sessions, 600.0, 0.3, 0)
    weights = train(trace, sessions, everything, split.labels, RECIPE)
    weights.save(tmp_path / "p.npz", "x")
    predictor = Trained(str(tmp_path / "p.npz"))
    whole = predictor.continues(trace, sessions)
    assert whole.tolist() == weights.predict(trace, sessions).tolist()
    head = trace.head(50)
    assert predictor.continues(head, hint(head)).tolist() == whole[:50].tolist()
    trace.save(tmp_path / "t.npz")
    assert predictor.continues(Trace.load(tmp_path / "t.npz"), sessions).tolist() == whole.tolist()
    with pytest.raises(InputError, match="has no texts to learn words from"):
        predictor.continues(tiny_trace(requests=20), hint(tiny_trace(requests=20)))


def test_words_as_a_matrix(tmp_path: Path) -> None:
    trace = spoken(tmp_path, 10)
    columns = WordColumns(trace, 16)
    dense = np.stack([columns.times(row) for row in np.eye(16)], axis=1)
    assert dense.shape == (trace.num_requests, 16)
    errors = np.arange(trace.num_requests, dtype=np.float64)
    assert columns.transposed_times(errors) == pytest.approx(dense.T @ errors)
    assert np.isfinite(figures(trace, hint(trace))).all()


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "no such file"), (b"", "no trained predictor"), (b"PK\x03\x04 broken", "no trained predictor")],
)
def test_a_file_that_is_none(tmp_path: Path, content: bytes | None, says: str) -> None:
    if content is not None:
        (tmp_path / "p.npz").write_bytes(content)
    with pytest.raises(InputError, match=f"{says}.*train_predictor"):
        Trained(str(tmp_path / "p.npz"))
    with pytest.raises(InputError, match=r"predictor\.path=None: missing"):
        Trained()


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    Weights(np.zeros(3), np.zeros(0)).save(tmp_path / "p.npz", "x")
    with pytest.raises(InputError, match="made by another version"):
        Trained(str(tmp_path / "p.npz"))


def test_the_command_and_a_run_with_its_result(tmp_path: Path) -> None:
    workload = ["+workload=balanced", "workload.requests=800"]
    folder = succeed("train_predictor", [*workload, "horizon_seconds=60", "hydra.run.dir=made"], tmp_path)
    scores = json.loads((folder / "scores.json").read_text())
    assert set(scores["splits"]) == {"by session", "by time"}
    ours, turns = (scores["splits"]["by session"]["scores"][n] for n in ("request figures", "turn count"))
    assert ours["log_loss"] < turns["log_loss"]
    trained = ["predictor=trained", f"predictor.path={folder / 'predictor.npz'}"]
    ran = succeed("train", [*workload, *QUIET, *trained, "hydra.run.dir=ran"], tmp_path)
    assert json.loads((ran / "summary.json").read_text())["predictor"] == "trained"


def test_nothing_to_learn_is_one_line(tmp_path: Path) -> None:
    code, _, error = run("train_predictor", ["+workload=balanced", "workload.requests=20"], tmp_path)
    assert (code, error.count("\n")) == (2, 1)
    assert "nothing to learn or to test" in error
