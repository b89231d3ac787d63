"""Reuse, gaps and divergence: against second implementations in plain Python, and against what was drawn."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from saecache_rl.characterization import divergence, gaps, reuse
from saecache_rl.characterization.findings import findings
from saecache_rl.characterization.measured import measure, sessions_of
from saecache_rl.characterization.plain import as_dict
from saecache_rl.engines.capacity import ceiling
from saecache_rl.vocabulary import TokenType
from saecache_rl.workloads.sessions import hint, lineage
from saecache_rl.workloads.trace import Trace
from tests.support import TraceBuilder, tiny_trace
from tests.workloads.naive import small_traces


def naive_reuse(trace: Trace, session: list[int]) -> tuple[dict[int, int], dict[tuple[int, int], int], dict[int, int]]:
    """Accesses by type, hits by (across, type), matches by block."""
    holder: dict[int, int] = {}
    accesses: dict[int, int] = {}
    hits: dict[tuple[int, int], int] = {}
    matches: dict[int, int] = {}
    for r in range(trace.num_requests):
        prompt = trace.prompt_blocks[trace.prompt_start[r] : trace.prompt_start[r + 1]].tolist()
        reply = trace.generated_blocks[trace.generated_start[r] : trace.generated_start[r + 1]].tolist()
        leading = True
        for block in prompt[: int(trace.matchable_blocks[r])]:
            kind = int(trace.token_type[block])
            accesses[kind] = accesses.get(kind, 0) + 1
            leading = leading and block in holder
            if leading:
                place = (int(holder[block] != session[r]), kind)
                hits[place] = hits.get(place, 0) + 1
                matches[block] = matches.get(block, 0) + 1
        holder.update(dict.fromkeys(prompt + reply, session[r]))
    return accesses, hits, matches


@given(small_traces())
def test_reuse_equals_a_plain_count(trace: Trace) -> None:
    sessions = lineage(trace)
    accesses, hits, matches = naive_reuse(trace, sessions.session.tolist())
    found = reuse.measure(trace, sessions)
    assert {t: int(n) for t, n in enumerate(found.accesses) if n} == accesses
    assert {(a, t): int(found.hits[a][t]) for a in (0, 1) for t in range(7) if found.hits[a][t]} == hits
    assert int(found.reused.sum()) == len(matches)
    assert int(found.offset_hits.sum()) == int(found.hits.sum())
    assert int(found.reuse_counts.sum()) == int(found.blocks.sum())
    assert int(found.reuse_counts[0]) == int(found.blocks.sum()) - len(matches)


def test_hits_are_those_of_the_ceiling() -> None:
    trace = tiny_trace(requests=150)
    assert reuse.measure(trace, hint(trace)).hits.sum() == ceiling(trace).hit_blocks.sum()


@pytest.mark.parametrize(
    ("value", "label"), [(0, "0"), (1, "1"), (2, "2 to 3"), (3, "2 to 3"), (4, "4 to 7"), (1000, "512 to 1,023")]
)
def test_bins(value: int, label: str) -> None:
    assert reuse.bin_labels()[reuse._bin(value)] == label
    assert int(np.frexp(float(value))[1]) == reuse._bin(value)


def drawn(weights: list[float], parts: list[tuple[float, float]], count: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    which = random.choice(len(parts), count, p=weights)
    mu, sigma = np.array(parts).T
    return np.exp(random.normal(mu[which], sigma[which]))


def test_two_modes_are_found() -> None:
    seconds = drawn([0.68, 0.32], [(2.65, 0.49), (4.41, 1.37)], 20_000)
    fits = {f.family: f for f in gaps.fit(seconds, np.arange(20_000, dtype=np.int32))}
    two = fits["two log-normals"]
    expected = {"weight_1": 0.68, "mu_1": 2.65, "sigma_1": 0.49, "weight_2": 0.32, "mu_2": 4.41, "sigma_2": 1.37}
    for name, value in expected.items():
        assert two.parameters[name] == pytest.approx(value, rel=0.05), name
    assert two.ks < 0.01 < 0.1 < fits["log-normal"].ks
    assert two.held_out > max(f.held_out for name, f in fits.items() if name != "two log-normals")


@pytest.mark.parametrize(
    ("family", "sample", "expected"),
    [
        ("log-normal", lambda r: r.lognormal(1.8, 1.1, 5000), {"mu": 1.8, "sigma": 1.1}),
        ("exponential", lambda r: r.exponential(40.0, 5000), {"mean": 40.0}),
        ("Weibull", lambda r: 30.0 * r.weibull(0.6, 5000), {"shape": 0.6, "scale": 30.0}),
    ],
)
def test_each_family_is_recovered_and_near(family: str, sample, expected: dict[str, float]) -> None:  # type: ignore[no-untyped-def]
    seconds = sample(np.random.default_rng(1))
    fit = next(f for f in gaps.fit(seconds, np.arange(5000, dtype=np.int32)) if f.family == family)
    for name, value in expected.items():
        assert fit.parameters[name] == pytest.approx(value, rel=0.05)
    assert fit.ks < 0.02
    # The density is the slope of the distribution.
    at = np.array([0.5, 3.0, 60.0])
    slope = (gaps.distribution(family, fit.parameters, at * 1.0001) - gaps.distribution(family, fit.parameters, at)) / (
        at * 0.0001
    )
    assert np.exp(gaps.log_density(family, fit.parameters, at)) == pytest.approx(slope, rel=0.01)


def test_gaps_of_whole_seconds_are_spread_for_the_distance() -> None:
    seconds = np.maximum(np.round(drawn([1.0], [(2.6, 0.5)], 20_000)), 1.0)
    one = gaps.fit(seconds, np.arange(20_000, dtype=np.int32))[0]
    assert one.ks < 0.015
    fine = drawn([1.0], [(2.6, 0.5)], 500)
    assert gaps.spread(fine).tolist() == np.sort(fine).tolist()


@pytest.mark.parametrize("seconds", [[5.0] * 40, [1.0, 2.0] * 20, [1e-3] * 39 + [1e6]])
def test_degenerate_gaps_give_finite_fits(seconds: list[float]) -> None:
    for fit in gaps.fit(np.array(seconds), np.arange(len(seconds), dtype=np.int32)):
        assert all(np.isfinite(v) for v in fit.parameters.values()), fit
        assert np.isfinite(fit.ks)


def test_few_gaps_are_not_fitted() -> None:
    trace = tiny_trace(requests=20)
    assert all(not g.fits for g in gaps.measure(trace, hint(trace)) if len(g.seconds) < gaps.LEAST)


def changing(first_differs: bool) -> Trace:
    """Sessions of three turns; each begins with the time of day, or has it where it does no harm."""
    builder = TraceBuilder(block_size=4)
    random = iter(range(1000, 100_000))
    at = 0.0
    for session in range(30):
        history: list[tuple[int, TokenType]] = []
        for turn in range(3):
            clock = [(next(random), TokenType.SYSTEM) for _ in range(4)]
            system = [(n, TokenType.SYSTEM) for n in range(40)]
            head = clock + system if first_differs else system
            history = history + [(next(random), TokenType.USER) for _ in range(8)]
            builder.request(at, head + history, [(next(random), TokenType.RESPONSE)], session, turn)
            at += 1.0
    return builder.trace("changing")


def test_a_changing_beginning_is_said_in_words() -> None:
    bad, good = measure(changing(True), "auto"), measure(changing(False), "auto")
    parts = bad.divergence
    assert (parts.followers, parts.extending, parts.beginning) == (60, 0, 60)
    assert parts.kinds.tolist() == [60, 0, 0, 0, 0, 0, 0]
    assert any("which makes every policy useless" in text for text in findings(bad))
    assert any("no policy can hit anything" in text for text in findings(bad))
    assert good.divergence.extending == 60
    assert not any("useless" in text for text in findings(good))


def test_the_figures_are_json(tmp_path: Path) -> None:
    trace = tiny_trace(requests=150)
    measured = measure(trace, "auto")
    assert measured.source == "hint"
    assert sessions_of(trace, "lineage").source == "lineage"
    data = json.loads(json.dumps(as_dict(measured), allow_nan=False))
    assert data["ceiling_token_hit_ratio"] == ceiling(trace).token_hit_ratio
    assert data["turns"]["sessions"] == len(np.unique(trace.session))
    assert divergence.measure(trace, hint(trace)).followers == data["divergence"]["followers"]
