"""Predictors: causal to the bit, each example learned once when it is settled, and better than guessing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_module
from hydra.utils import instantiate

import saecache_rl
from saecache_rl.errors import InputError
from saecache_rl.predictor import Always, Never, OnlineLogistic, Predictor, TrueAnswer, TurnCount
from saecache_rl.vocabulary import TokenType
from saecache_rl.workloads.sessions import Sessions, find_sessions
from saecache_rl.workloads.trace import Trace
from tests.support import TraceBuilder, tiny_trace

FILES = sorted((Path(saecache_rl.__file__).parent / "conf" / "predictor").glob("*.yaml"))
# One that a training run has to leave first is tested with it (test_training.py).
NAMES = [file.stem for file in FILES if "path: null" not in file.read_text(encoding="utf-8")]


def from_yaml(name: str) -> Predictor:
    with initialize_config_module("saecache_rl.conf", version_base="1.3"):
        predictor: Predictor = instantiate(compose(overrides=[f"+predictor={name}"]).predictor)
    return predictor


def trace_of(rows: list[tuple[float, int]]) -> tuple[Trace, Sessions]:
    """A trace of (arrival, session) rows whose prompts share nothing."""
    builder, turns = TraceBuilder(), {}
    for i, (arrival, session) in enumerate(rows):
        turns[session] = turns.get(session, -1) + 1
        prompt = [(1000 * i + j, TokenType.USER) for j in range(20)]
        builder.request(arrival, prompt, [(1000 * i + 500, TokenType.RESPONSE)], session, turns[session])
    trace = builder.trace()
    return trace, find_sessions(trace, "hint")


@pytest.mark.parametrize("name", NAMES)
class TestEveryYaml:
    def test_gives_probabilities_and_its_name(self, name: str) -> None:
        predictor, trace = from_yaml(name), tiny_trace(1, 300)
        assert predictor.name == name
        for source in ("lineage", "hint"):
            continues = predictor.continues(trace, find_sessions(trace, source))
            assert continues.shape == (300,)
            assert continues.dtype == np.float64
            assert (continues >= 0).all()
            assert (continues <= 1).all()
            assert predictor.continues(trace, find_sessions(trace, source)).tobytes() == continues.tobytes()

    def test_a_cut_trace_has_the_same_leading_predictions(self, name: str) -> None:
        predictor, trace = from_yaml(name), tiny_trace(2, 400)
        if predictor.oracle:
            pytest.skip("an oracle reads ahead, and says so")
        whole = predictor.continues(trace, find_sessions(trace, "lineage"))
        for requests in (1, 2, 57, 200, 399):
            head = trace.head(requests)
            cut = predictor.continues(head, find_sessions(head, "lineage"))
            assert cut.tobytes() == whole[:requests].tobytes()


def test_only_the_true_answer_is_an_oracle() -> None:
    assert {name for name in NAMES if from_yaml(name).oracle} == {"true_answer"}


def test_the_true_answer() -> None:
    trace, sessions = trace_of([(0, 0), (1, 1), (2, 0), (3, 2), (4, 0), (5, 1)])
    assert TrueAnswer().continues(trace, sessions).tolist() == [1, 1, 1, 0, 0, 0]


def test_turn_count_by_hand() -> None:
    trace, sessions = trace_of([(0, 0), (1, 1), (2, 0), (3, 2), (14, 3), (15, 1)])
    # With a horizon of 10 s. One of each outcome in advance: turn 0 begins at 1/2.
    # Request 2 settles request 0 (went on): turn 0 is 2/3 when request 3 is over, turn 1 still 1/2 at request 2.
    # Request 4 (14 s): request 1 (1 s) has been silent for more than 10 s, request 3 (3 s) too, request 2 (2 s) too.
    # Turn 0 is then 2/5. Request 5 continues request 1, which is settled already and not learned again; turn 1 is 1/3.
    expected = [1 / 2, 1 / 2, 1 / 2, 2 / 3, 2 / 5, 1 / 3]
    assert TurnCount(horizon_seconds=10.0).continues(trace, sessions) == pytest.approx(expected, abs=1e-15)


def test_logistic_begins_undecided_and_learns_when_settled() -> None:
    trace, sessions = trace_of([(0, 0), (1, 1), (2, 0), (3, 2)])
    continues = OnlineLogistic(horizon_seconds=100.0).continues(trace, sessions)
    assert continues[:2].tolist() == [0.5, 0.5]
    assert continues[2] > 0.5
    assert continues[3] > 0.5


def test_silence_is_learned_as_an_end() -> None:
    trace, sessions = trace_of([(float(20 * i), i) for i in range(30)])
    assert OnlineLogistic(horizon_seconds=10.0).continues(trace, sessions)[-1] < 0.2
    assert TurnCount(horizon_seconds=10.0).continues(trace, sessions)[-1] < 0.05


def scores(predictor: Predictor, trace: Trace, sessions: Sessions) -> tuple[float, float]:
    """F1 and Matthews' correlation against the true answer, over the second half."""
    half = trace.num_requests // 2
    truth = TrueAnswer().continues(trace, sessions)[half:] > 0.5
    guess = predictor.continues(trace, sessions)[half:] >= 0.5
    tp, fp = float((guess & truth).sum()), float((guess & ~truth).sum())
    fn, tn = float((~guess & truth).sum()), float((~guess & ~truth).sum())
    f1 = 2 * tp / (2 * tp + fp + fn)
    spread = np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    return f1, float((tp * tn - fp * fn) / spread) if spread else 0.0


def test_f1_and_mcc_on_a_trace_with_something_to_learn() -> None:
    trace = tiny_trace(3, 3000)
    sessions = find_sessions(trace, "hint")
    result = {
        p.name: scores(p, trace, sessions) for p in (Always(), Never(), TurnCount(), OnlineLogistic(), TrueAnswer())
    }
    assert result["true_answer"] == (1.0, 1.0)
    assert result["never"] == (0.0, 0.0)
    assert result["always"][1] == 0.0
    # Tool calls decide most of it, which only the logistic model sees.
    assert result["logistic"][1] > 0.5
    assert result["logistic"][1] > result["turn_count"][1] > 0.0
    assert result["logistic"][0] > result["always"][0]


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), True, "600"])
def test_impossible_options_are_refused(value: object) -> None:
    for make in (TurnCount, OnlineLogistic):
        with pytest.raises(InputError, match="horizon_seconds"):
            make(horizon_seconds=value)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="step"):
        OnlineLogistic(step=value)  # type: ignore[arg-type]
