"""The table of a comparison, against sums by hand."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from saecache_rl.commands.compare_report import Comparison, Row
from saecache_rl.commands.runs import Summary, gap_closed
from saecache_rl.commands.standings import Estimate


def row(agent: str, point: int, ratio: float, lru: float, optimum: float, seed: int = 0) -> Row:
    return Row(
        point,
        Summary(
            workload="w",
            engine="simulator",
            agent=agent,
            seed=seed,
            num_blocks=1000 * (point + 1),
            block_size=16,
            requests=10,
            prompt_tokens=1000,
            hit_tokens=int(1000 * ratio),
            token_hit_ratio=ratio,
            block_hit_ratio=ratio,
            ceiling_token_hit_ratio=0.9,
            ttft_ms=None,
            recomputed_tokens={"p50": 1.0, "p95": 2.0, "p99": 3.0},
            evictions=5,
            reference={"lru": lru, "optimum": optimum},
            gap_closed=gap_closed(ratio, lru, optimum),
            wall_seconds=0.1,
            block_accesses_per_second=1e6,
            oracle=agent == "optimum",
            sessions="lineage",
            versions={"saecache_rl": "0"},
            predictor="never",
            window=100,
            sampled_choices=0,
            trace_digest="d",
            workload_notes={"arrivals": "poisson"},
        ),
    )


def comparison(seeds: int = 1) -> Comparison:
    # LRU and the optimum at two capacities: 0.2 and 0.4, then 0.5 and 0.8, where the agent has 0.3 and then 0.47.
    rows, frame = [], []
    for seed in range(seeds):
        lift = 0.01 * seed
        rows += [row("mine", 0, 0.3 + lift, 0.2, 0.4, seed), row("mine", 1, 0.47 + lift, 0.5, 0.8, seed)]
        for name, low, high in (("lru", 0.2, 0.5), ("optimum", 0.4, 0.8)):
            frame += [row(name, 0, low, 0.2, 0.4, seed), row(name, 1, high, 0.5, 0.8, seed)]
    return Comparison(("mine",), tuple(rows), tuple(frame))


def test_gap_closed_is_the_ratio_of_sums_and_the_mean_of_ratios_stands_beside_it() -> None:
    optimum, lru, mine = (
        next(s for s in comparison().standings if s.agent == name) for name in ("optimum", "lru", "mine")
    )
    assert mine.gap_closed is not None
    assert mine.mean_gap_closed is not None
    assert mine.gap_closed.mean == pytest.approx((0.1 - 0.03) / (0.2 + 0.3))
    assert mine.mean_gap_closed.mean == pytest.approx((0.1 / 0.2 - 0.03 / 0.3) / 2)
    assert mine.worst_points == pytest.approx(-3.0)
    assert [s.outcomes for s in (optimum, lru, mine)] == [(2, 0, 0), (0, 2, 0), (1, 0, 1)]
    assert (optimum.oracle, lru.oracle, mine.oracle) == (True, False, False)
    assert optimum.gap_closed == Estimate(1.0)
    assert lru.gap_closed == Estimate(0.0)


def test_intervals_over_seeds_hold_the_mean_and_are_the_same_each_time() -> None:
    found = [next(s for s in comparison(3).standings if s.agent == "mine").gap_closed for _ in range(2)]
    assert found[0] == found[1]
    estimate = found[0]
    assert estimate is not None
    assert estimate.low is not None
    assert estimate.high is not None
    # One value a seed: 0.14, 0.18, 0.22.
    assert 0.14 - 1e-9 <= estimate.low < estimate.mean < estimate.high <= 0.22 + 1e-9
    assert estimate.mean == pytest.approx(0.18)
    assert Estimate.of([0.5, 0.5]) == Estimate(0.5, 0.5, 0.5)
    assert Estimate.of([]) is None


def test_files(tmp_path: Path) -> None:
    made = comparison(2)
    made.write_csv(tmp_path / "results.csv")
    made.write_table(tmp_path / "table.md")
    made.plot(tmp_path / "hit_ratio.png")
    with (tmp_path / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:4] == ["workload", "agent", "num_blocks", "seed"]
    for column in (
        "ttft_ms_mean",
        "ttft_ms_p99",
        "recomputed_tokens_p95",
        "reference_lru",
        "reference_optimum",
        "gap_closed",
    ):
        assert column in rows[0]
    assert [(r["num_blocks"], r["seed"]) for r in rows] == [("1000", "0"), ("2000", "0"), ("1000", "1"), ("2000", "1")]
    table = (tmp_path / "table.md").read_text()
    for part in (
        "| optimum (oracle) | 1.000",
        "| mine | 0.160 [",
        "sum over capacities",
        "bootstrap",
        "hit % at 1,000",
        "| agent | seed 0 | seed 1 |",
        "| mine | 0.140 (-3.00) | 0.180 (-2.00) |",
    ):
        assert part in table
    assert (tmp_path / "hit_ratio.png").read_bytes().startswith(b"\x89PNG")


def test_no_gap_where_the_optimum_is_lru() -> None:
    flat = [row(name, 0, 0.5, 0.5, 0.5) for name in ("mine", "lru", "optimum")]
    standing = Comparison(("mine",), tuple(flat[:1]), tuple(flat[1:])).standings[-1]
    assert (standing.agent, standing.gap_closed, standing.mean_gap_closed) == ("mine", None, None)


def test_capacities_that_differ_between_seeds_are_shown_as_means() -> None:
    made = comparison(2)
    moved = [
        replace(r, summary=replace(r.summary, num_blocks=r.summary.num_blocks + 100 * r.summary.seed))
        for r in made.frame
    ]
    assert replace(made, frame=tuple(moved)).capacities == ("~1,050", "~2,050")
    assert made.capacities == ("1,000", "2,000")


def test_everything_failed(tmp_path: Path) -> None:
    empty = Comparison(("mine",), (), ())
    empty.write_csv(tmp_path / "results.csv")
    empty.write_table(tmp_path / "table.md")
    assert "every run failed" in (tmp_path / "table.md").read_text()
    assert empty.terminal_table()[2] == []
