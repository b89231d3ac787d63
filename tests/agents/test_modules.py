"""Each module against the formula that it states, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saecache_rl.agents import Bandit, LogNormalGaps, ParameterBandit, PositionalDecay, QueueWeights, TokenWeights
from saecache_rl.agents.testing import random_stats
from saecache_rl.cache.params import Param, ParamSpace, PolicyParams
from saecache_rl.engines.stats import WindowStats
from saecache_rl.errors import InputError
from saecache_rl.vocabulary import TOKEN_TYPE_NAMES, Queue, TokenType

SPACE = ParamSpace(
    (
        *(Param(f"alpha.{q}", 1.0, 0.1, 3.0, "log") for q in ("structural", "chat", "agentic")),
        *(Param(f"weight.{t}", 0.5, 0.1, 5.0, "log") for t in TOKEN_TYPE_NAMES),
        Param("mu.chat", 4.15, -5, 12),
        Param("sigma.chat", 0.97, 0.05, 5, "log"),
        Param("mu.agentic", 1.81, -5, 12),
        Param("sigma.agentic", 1.09, 0.05, 5, "log"),
        Param("gamma", 1.0, 0.1, 8.0, "log"),
    )
)
START = SPACE.start()


def window(**columns: object) -> WindowStats:
    return replace(WindowStats.empty(), window=0, requests=1, **columns)


def by_type(**counts: int) -> np.ndarray:
    column = np.zeros(len(TokenType), np.int64)
    for name, count in counts.items():
        column[TokenType[name.upper()]] = count
    return column


def by_queue(structural: float, chat: float, agentic: float) -> np.ndarray:
    column = np.zeros(len(Queue), np.float64)
    column[[Queue.STRUCTURAL, Queue.CHAT, Queue.AGENTIC]] = structural, chat, agentic
    return column


class TestTokenWeights:
    def test_moves_towards_its_target(self) -> None:
        module = TokenWeights(rate=0.1)
        stats = window(
            type_accesses=by_type(user=100),
            type_hits=by_type(user=25),
            type_evictions=by_type(user=40),
            type_ghost_misses=by_type(user=8),
        )
        # 0.9 * 0.5 + 0.1 * (1 + 5 * 8/40 + 2 * 25/100) = 0.45 + 0.1 * 2.5
        assert module.update(stats, START, 0.0) == {"weight.user": pytest.approx(0.70)}

    def test_counts_decay(self) -> None:
        module = TokenWeights(rate=1.0, decay=0.5)
        module.update(window(type_accesses=by_type(user=100), type_hits=by_type(user=100)), START, 0.0)
        # 100 accesses, 0 hits after 50, 50: r_reuse = 50/150
        values = module.update(window(type_accesses=by_type(user=100)), START, 0.0)
        assert values["weight.user"] == pytest.approx(1 + 2 / 3)

    def test_without_data_a_type_stays(self) -> None:
        assert TokenWeights().update(window(), START, 0.0) == {}

    def test_misses_of_evictions_long_ago_count_as_one_at_most(self) -> None:
        module = TokenWeights(rate=1.0, decay=0.5)
        module.update(window(type_evictions=by_type(system=4)), START, 0.0)
        values = module.update(window(type_ghost_misses=by_type(system=400)), START, 0.0)
        assert values["weight.system"] == pytest.approx(6.0)


def gap_window(chat: np.ndarray, agentic: np.ndarray) -> WindowStats:
    logs = [np.log(chat), np.log(agentic)]
    return window(
        gap_count=np.array([len(x) for x in logs]),
        gap_log_sum=np.array([x.sum() for x in logs]),
        gap_log_square_sum=np.array([(x * x).sum() for x in logs]),
    )


class TestGaps:
    @pytest.mark.parametrize("size", [7, 20, 50, 500, 5000])
    @pytest.mark.parametrize("truth", [(2.0, 1.5, 5.0, 0.4), (1.0, 0.8, 3.0, 2.0)])
    def test_recovers_mu_and_sigma_within_5_percent_from_5000_gaps(
        self, size: int, truth: tuple[float, float, float, float]
    ) -> None:
        generator = np.random.default_rng(1)
        chat = generator.lognormal(truth[0], truth[1], 5000)
        agentic = generator.lognormal(truth[2], truth[3], 5000)
        module, params = LogNormalGaps(), START
        for i in range(0, 5000, size):
            params = params.replace(module.update(gap_window(chat[i : i + size], agentic[i : i + size]), params, 0.0))
        found = [params[name] for name in ("mu.chat", "sigma.chat", "mu.agentic", "sigma.agentic")]
        assert found == pytest.approx(truth, rel=0.05)

    @pytest.mark.parametrize(
        "gaps",
        [
            np.array([]),
            np.array([5.0]),
            np.full(19, 3.0),
            np.full(500, 3.0),
            np.full(500, 1e-9),
            np.full(100, 1e6),
            np.diff(np.arange(1000) * 0.1),  # equal up to rounding
        ],
        ids=["none", "one", "few", "equal", "equal-tiny", "equal-large", "equal-rounded"],
    )
    def test_degenerate_gaps_change_nothing(self, gaps: np.ndarray) -> None:
        module = LogNormalGaps()
        assert module.update(gap_window(gaps, gaps), START, 0.0) == {}

    def test_zero_gaps_change_nothing(self) -> None:
        # An engine leaves them out, for they have no logarithm; one that did not would report minus infinity.
        module = LogNormalGaps()
        bad = window(
            gap_count=np.array([50, 50]),
            gap_log_sum=np.full(2, -np.inf),
            gap_log_square_sum=np.full(2, np.inf),
        )
        assert module.update(bad, START, 0.0) == {}
        assert np.isfinite(module.state_dict()["_log_sum"]).all()

    def test_waits_until_twenty_are_there(self) -> None:
        module = LogNormalGaps(rate=1.0)
        gaps = np.exp(np.linspace(0.0, 1.0, 20))
        none = np.array([])
        assert module.update(gap_window(gaps[:12], none), START, 0.0) == {}
        values = module.update(gap_window(gaps[12:], none), START, 0.0)
        assert set(values) == {"mu.chat", "sigma.chat"}
        assert values["mu.chat"] == pytest.approx(np.log(gaps).mean())
        assert values["sigma.chat"] == pytest.approx(np.log(gaps).std(ddof=1))

    def test_sigma_has_a_floor(self) -> None:
        module = LogNormalGaps(rate=1.0)
        gaps = np.exp(2.0 + 0.001 * np.sin(np.arange(100)))
        assert module.update(gap_window(gaps, np.array([])), START, 0.0)["sigma.chat"] == 0.05


class TestPosition:
    @pytest.mark.parametrize("gamma", [0.3, 0.5, 1.0, 2.0, 5.0])
    def test_recovers_the_exponent(self, gamma: float) -> None:
        centres = (np.arange(16) + 0.5) / 16
        accesses = np.full(16, 10**7)
        curve = 1 - centres**gamma
        hits = np.round(accesses * 0.9 * curve / curve[0]).astype(np.int64)
        fit = PositionalDecay().update(window(offset_accesses=accesses, offset_hits=hits), START, 0.0)["gamma"]
        # The curve is known only relative to its first bin, so the recovered exponent is the one that fits that.
        grid = np.exp(np.linspace(np.log(0.1), np.log(8), 20001))
        losses = [np.sum((curve / curve[0] - (1 - centres**g)) ** 2) for g in grid]
        assert fit == pytest.approx(grid[int(np.argmin(losses))], rel=1e-3)
        if gamma >= 1:
            assert fit == pytest.approx(gamma, rel=0.1)

    @pytest.mark.parametrize(
        ("accesses", "hits"),
        [
            (np.zeros(16, int), np.zeros(16, int)),
            (np.full(16, 100), np.zeros(16, int)),
            (np.eye(16, dtype=int)[0] * 1000, np.eye(16, dtype=int)[0] * 900),
            (np.eye(16, dtype=int)[3] * 1000, np.eye(16, dtype=int)[3] * 900),
            (np.full(16, 1), np.full(16, 1)),
        ],
        ids=["nothing", "no-hits", "first-bin-only", "without-first-bin", "too-few"],
    )
    def test_stays_without_enough_data(self, accesses: np.ndarray, hits: np.ndarray) -> None:
        assert PositionalDecay().update(window(offset_accesses=accesses, offset_hits=hits), START, 0.0) == {}

    def test_flat_and_steep_curves_give_the_bounds(self) -> None:
        accesses = np.full(16, 1000)
        flat = PositionalDecay().update(window(offset_accesses=accesses, offset_hits=accesses), START, 0.0)["gamma"]
        steep = PositionalDecay().update(
            window(offset_accesses=accesses, offset_hits=np.eye(16, dtype=int)[0] * 1000), START, 0.0
        )["gamma"]
        assert flat == pytest.approx(8.0, rel=1e-3)
        assert steep < 0.15


class TestQueueWeights:
    def test_efficiency_by_hand(self) -> None:
        module = QueueWeights(temperature=0.5, rate=0.1)
        hits = by_queue(30, 10, 20).astype(np.int64)
        # E = 0.3, 0.1, 0.2, mean 0.2; squared ratios 2.25, 0.25, 1
        values = module.update(window(queue_hits=hits, queue_held=by_queue(100, 100, 100)), START, 0.0)
        assert values == {
            "alpha.structural": pytest.approx(0.9 + 0.225),
            "alpha.chat": pytest.approx(0.9 + 0.025),
            "alpha.agentic": pytest.approx(1.0),
        }

    def test_a_queue_that_held_nothing_earns_nothing(self) -> None:
        values = QueueWeights(rate=1.0, temperature=1.0).update(
            window(queue_hits=by_queue(5, 10, 0).astype(np.int64), queue_held=by_queue(0, 10, 0)), START, 0.0
        )
        assert values == {"alpha.structural": 0.0, "alpha.chat": pytest.approx(3.0), "alpha.agentic": 0.0}

    def test_no_hit_changes_nothing(self) -> None:
        assert QueueWeights().update(window(queue_held=by_queue(10, 10, 10)), START, 0.0) == {}
        assert QueueWeights().update(window(), START, 0.0) == {}

    def test_a_spike_is_clipped_to_the_queues_own_past(self) -> None:
        module = QueueWeights(rate=1.0, temperature=1.0)
        past = []
        for i in range(50):
            hits = by_queue(100 + i % 7, 100, 100).astype(np.int64)
            stats = window(queue_hits=hits, queue_held=by_queue(100, 100, 100))
            module.update(stats, START, 0.0)
            past.append(hits[Queue.STRUCTURAL] / hits[1:].mean())
        spike = window(queue_hits=by_queue(1000, 1, 1).astype(np.int64), queue_held=by_queue(100, 100, 100))
        value = module.update(spike, START, 0.0)["alpha.structural"]
        assert value == pytest.approx(np.mean(past) + 2 * np.std(past))

    def test_a_constant_past_does_not_pin_the_future(self) -> None:
        module = QueueWeights(rate=1.0, temperature=1.0)
        for _ in range(50):
            module.update(window(queue_hits=by_queue(0, 9, 0).astype(int), queue_held=by_queue(1, 1, 0)), START, 0.0)
        for _ in range(50):
            stats = window(queue_hits=by_queue(0, 1, 9).astype(int), queue_held=by_queue(1, 1, 1))
            values = module.update(stats, START, 0.0)
        assert values["alpha.agentic"] == pytest.approx(2.7)

    @given(
        rows=st.lists(
            st.tuples(*[st.integers(0, 2**53)] * 3, *[st.sampled_from([0.0, 1e-300, 1e-3, 1.0, 1e9, 1e300])] * 3),
            min_size=1,
            max_size=60,
        ),
        temperature=st.sampled_from([1e-9, 1e-3, 0.2, 5.0, 1e6]),
    )
    @settings(max_examples=60, deadline=None)
    def test_never_overflows(self, rows: list[tuple[float, ...]], temperature: float) -> None:
        module, params = QueueWeights(temperature=temperature), START
        for row in rows:
            stats = window(queue_hits=by_queue(*row[:3]).astype(np.int64), queue_held=by_queue(*row[3:]))
            params = params.replace(module.update(stats, params, 0.0))
            assert np.isfinite(params.values).all()


GRID = {"rate_factor": [1.0, 0.5], "temperature": [0.2, 1.0]}


class TestBandit:
    def run(self, bandit: Bandit, windows: int, best: dict[str, float]) -> list[tuple[float, ...]]:
        chosen = []
        for _ in range(windows):
            suggestion = bandit.suggest()
            chosen.append(tuple(suggestion.values()))
            hits = 60 if suggestion == best else 20
            bandit.update(window(hit_tokens=hits, prompt_tokens=100), START, 0.0)
        return chosen

    def test_starts_with_the_first_values_and_tries_every_arm_once(self) -> None:
        bandit = Bandit(GRID, hold=3)
        chosen = self.run(bandit, 12, {})
        assert chosen[:3] == [(1.0, 0.2)] * 3
        assert set(chosen) == set(bandit.arms)
        assert all(chosen[i] == chosen[i + 1] == chosen[i + 2] for i in range(0, 12, 3))

    def test_settles_on_the_best_arm(self) -> None:
        best = {"rate_factor": 0.5, "temperature": 1.0}
        chosen = self.run(Bandit(GRID, hold=2), 400, best)
        assert chosen[200:].count((0.5, 1.0)) > 150

    def test_over_parameters_it_sets_them_itself_zero_among_them(self) -> None:
        bandit = ParameterBandit({"alpha": [0.0, 0.5, 1.0]}, hold=2)
        assert bandit.owns == ("alpha",)
        assert bandit.suggest() == {}
        value, chosen = 0.0, []
        for _ in range(300):
            chosen.append(value)
            hits = 60 if value == 0.5 else 20
            value = bandit.update(window(hit_tokens=hits, prompt_tokens=100), START, 0.0)["alpha"]
        assert set(chosen[:6]) == {0.0, 0.5, 1.0}
        assert chosen[150:].count(0.5) > 110

    def test_the_seed_decides_the_order_of_trials(self) -> None:
        grid = {"rate_factor": [float(i) for i in range(1, 9)]}
        runs = []
        for seed in (0, 0, 1):
            bandit = Bandit(grid, hold=1)
            bandit.reset(seed)
            runs.append(self.run(bandit, 8, {}))
        assert runs[0] == runs[1]
        assert runs[0] != runs[2]


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: TokenWeights(rate=0.0), "rate"),
        (lambda: TokenWeights(rate=float("nan")), "rate"),
        (lambda: TokenWeights(decay=1.5), "decay"),
        (lambda: LogNormalGaps(rate=2.0), "rate"),
        (lambda: LogNormalGaps(minimum=1), "minimum"),
        (lambda: PositionalDecay(low=3.0, high=2.0), "low"),
        (lambda: QueueWeights(temperature=0.0), "temperature"),
        (lambda: QueueWeights(memory=1), "memory"),
        (lambda: Bandit({"rate_factor": []}), "grid.rate_factor"),
        (lambda: Bandit({"rate_factor": [1.0, -1.0]}), "grid.rate_factor"),
        (lambda: Bandit({"rate_factor": [1.0]}, hold=0), "hold"),
        (lambda: ParameterBandit({"alpha": [float("nan")]}), "grid.alpha"),
        (lambda: QueueWeights(rate="fast"), "rate"),  # type: ignore[arg-type]
        (lambda: QueueWeights(rate=True), "rate"),
    ],
)
def test_impossible_options_are_refused_by_name(make: object, word: str) -> None:
    with pytest.raises(InputError, match=word) as caught:
        make()  # type: ignore[operator]
    assert "\n" not in str(caught.value)


def test_no_parameter_is_ever_nan() -> None:
    generator = np.random.default_rng(0)
    modules = [TokenWeights(), LogNormalGaps(), PositionalDecay(), QueueWeights()]
    params: PolicyParams = START
    for i in range(200):
        stats = random_stats(generator, i)
        for module in modules:
            params = params.replace(module.update(stats, params, 0.0))
