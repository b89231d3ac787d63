"""What a comparison leaves: results.csv, table.md, the plot, and its runs in a tracker."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from saecache_rl.commands.runs import Summary
from saecache_rl.commands.standings import CONFIDENCE, Estimate, Standing
from saecache_rl.tracking.plots import Curve, plot_comparison
from saecache_rl.tracking.sinks import RunInfo, Sink

#: Capacities that the table shows; of more, it shows some from the smallest to the largest.
_SHOWN_POINTS = 6


@dataclass(frozen=True)
class Row:
    """One run: which of the capacities it has, by place, and its summary."""

    point: int
    summary: Summary


@dataclass(frozen=True)
class Comparison:
    """The rows of the agents asked for, in their order, and those of LRU and the optimum that frame them."""

    agents: tuple[str, ...]
    rows: tuple[Row, ...]
    frame: tuple[Row, ...]

    @cached_property
    def capacities(self) -> tuple[str, ...]:
        """The capacities as text, one a point; their mean, with ~, where seeds differ."""
        texts = []
        for point in self._points:
            blocks = [row.summary.num_blocks for row in self.frame if row.point == point]
            same = min(blocks) == max(blocks)
            texts.append(f"{blocks[0]:,}" if same else f"~{round(float(np.mean(blocks))):,}")
        return tuple(texts)

    @cached_property
    def standings(self) -> tuple[Standing, ...]:
        """LRU and the optimum first, unless they are asked for; then the agents that have rows."""
        named = {row.summary.agent for row in self.rows}
        first = [name for name in ("lru", "optimum") if name not in named]
        everyone = [*first, *(name for name in self.agents if name in named)]
        return tuple(self._standing(name) for name in everyone if self._of(name))

    def write_csv(self, path: Path) -> None:
        """Write a row a run, whole or not at all."""
        partial = path.with_name(path.name + ".partial")
        flat = [self._flat(row) for row in self.rows]
        with partial.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(
                file,
                fieldnames=list(flat[0]) if flat else ["workload", "agent", "num_blocks", "seed"],
                lineterminator="\n",
            )
            writer.writeheader()
            writer.writerows(flat)
        partial.replace(path)

    def write_table(self, path: Path) -> None:
        """Write the table in Markdown, with its caption."""
        columns, rows = self._table()
        lines = [f"# {self.title}", ""] if self.frame else ["# Nothing to compare: every run failed", ""]
        lines += [*_markdown(columns, rows), "", self._caption(), ""]
        if len(self._seeds) > 1:
            lines += ["## Gap closed, seed by seed; in brackets the worst difference to LRU in points", ""]
            lines += [*_markdown(*self._seed_table()), ""]
        path.write_text("\n".join(lines), encoding="utf-8")

    def terminal_table(self) -> tuple[str, list[str], list[list[str]]]:
        """Title, columns and rows for a terminal."""
        return (self.title, *self._table(shown=3))

    @cached_property
    def title(self) -> str:
        """What was compared."""
        if not self.frame:
            return "nothing to compare"
        one = self.frame[0].summary
        return f"{one.workload}: {one.requests:,} requests, {len(self._points)} capacities, {len(self._seeds)} seeds"

    def plot(self, path: Path) -> None:
        """Draw hit ratio over capacity."""
        one = self.frame[0].summary
        named = {row.summary.agent for row in self.rows}
        seeds = len({row.summary.seed for row in self.frame})
        ceiling = float(np.mean([row.summary.ceiling_token_hit_ratio for row in self.frame]))
        plot_comparison(
            path,
            f"{one.workload}, {one.requests:,} requests"
            + (f"; mean and 95 % interval of {seeds} seeds" if seeds > 1 else ""),
            [self._curve(name) for name in self.agents if name in named],
            self._curve("lru", self.frame),
            self._curve("optimum", self.frame),
            ceiling,
            one.block_size,
        )

    def track(self, tracker: Sink, folder: Path, config: Mapping[str, Any], figures: Sequence[Path]) -> None:
        """Give a tracker one run an (agent, seed), capacities as its axis."""
        for name in self.agents:
            for seed in self._seeds:
                rows = sorted(
                    (r for r in self.rows if (r.summary.agent, r.summary.seed) == (name, seed)), key=lambda r: r.point
                )
                if not rows:
                    continue
                workload = rows[0].summary.workload
                tracker.start(
                    RunInfo(folder, f"{folder.name}/{name}/seed{seed}", workload, name, seed, config, axis="num_blocks")
                )
                for row in rows:
                    tracker.log(row.summary.num_blocks, row.summary.as_dict())
                standing = self._standing(name, seed)
                summary = {"oracle": standing.oracle, "worst_points_against_lru": standing.worst_points}
                if standing.gap_closed is not None:
                    summary["gap_closed_over_capacities"] = standing.gap_closed.mean
                tracker.finish(summary, figures)

    def _flat(self, row: Row) -> dict[str, Any]:
        flat = row.summary.flat()
        first = {key: flat.pop(key) for key in ("workload", "agent", "num_blocks", "seed")}
        return first | flat

    @cached_property
    def _points(self) -> list[int]:
        return sorted({row.point for row in self.frame})

    @cached_property
    def _seeds(self) -> list[int]:
        return list(dict.fromkeys(row.summary.seed for row in self.frame))

    def _of(self, name: str) -> list[Row]:
        found = [row for row in self.rows if row.summary.agent == name]
        return found or [row for row in self.frame if row.summary.agent == name]

    def _standing(self, name: str, only_seed: int | None = None) -> Standing:
        rows = [row for row in self._of(name) if only_seed is None or row.summary.seed == only_seed]
        sums, means = [], []
        for seed in self._seeds:
            own = [row.summary for row in rows if row.summary.seed == seed]
            above = sum(s.reference["optimum"] - s.reference["lru"] for s in own)
            if above > 0:
                sums.append(sum(s.token_hit_ratio - s.reference["lru"] for s in own) / above)
            ratios = [s.gap_closed for s in own if s.gap_closed is not None]
            if ratios:
                means.append(float(np.mean(ratios)))
        return Standing(
            agent=name,
            oracle=any(row.summary.oracle for row in rows),
            gap_closed=Estimate.of(sums),
            mean_gap_closed=Estimate.of(means),
            worst_points=100 * min(row.summary.token_hit_ratio - row.summary.reference["lru"] for row in rows),
            outcomes=(
                sum(row.summary.token_hit_ratio > row.summary.reference["lru"] for row in rows),
                sum(row.summary.token_hit_ratio == row.summary.reference["lru"] for row in rows),
                sum(row.summary.token_hit_ratio < row.summary.reference["lru"] for row in rows),
            ),
            hit_ratio=tuple(
                Estimate.of([row.summary.token_hit_ratio for row in rows if row.point == point])
                for point in self._points
            ),
        )

    def _curve(self, name: str, among: Sequence[Row] | None = None) -> Curve:
        rows = [row for row in (self.rows if among is None else among) if row.summary.agent == name]
        points = sorted({row.point for row in rows})
        blocks = [float(np.mean([r.summary.num_blocks for r in rows if r.point == p])) for p in points]
        found = [Estimate.of([r.summary.token_hit_ratio for r in rows if r.point == p]) for p in points]
        estimates = [e for e in found if e is not None]
        order = np.argsort(blocks, kind="stable")

        def column(values: Sequence[float]) -> npt.NDArray[np.float64]:
            return np.asarray(values, np.float64)[order]

        oracle = any(row.summary.oracle for row in rows)
        label = f"{name} (oracle)" if oracle and name != "optimum" else name
        low = [e.low for e in estimates if e.low is not None]
        high = [e.high for e in estimates if e.high is not None]
        spread = len(low) == len(high) == len(points)
        return Curve(
            label,
            column(blocks),
            column([e.mean for e in estimates]),
            column(low) if spread else None,
            column(high) if spread else None,
        )

    def _table(self, shown: int = _SHOWN_POINTS) -> tuple[list[str], list[list[str]]]:
        count = len(self._points)
        places = sorted(set(np.linspace(0, count - 1, min(shown, count)).round().astype(int).tolist())) if count else []
        columns = [
            "agent",
            "gap closed",
            "mean of ratios",
            "worst vs LRU, points",
            "above, equal, below LRU",
            *(f"hit % at {self.capacities[i]}" for i in places),
        ]
        rows = []
        for standing in self.standings:
            row = [standing.agent + (" (oracle)" if standing.oracle else "")]
            row += [e.text() if e is not None else "-" for e in (standing.gap_closed, standing.mean_gap_closed)]
            row.append(f"{standing.worst_points:+.2f}")
            row.append(", ".join(str(count) for count in standing.outcomes))
            for i in places:
                estimate = standing.hit_ratio[i]
                row.append(estimate.text(100, 2) if estimate is not None else "-")
            rows.append(row)
        return columns, rows

    def _seed_table(self) -> tuple[list[str], list[list[str]]]:
        rows = []
        for name in (standing.agent for standing in self.standings):
            row = [name]
            for seed in self._seeds:
                if not any(r.summary.seed == seed for r in self._of(name)):
                    row.append("-")
                    continue
                own = self._standing(name, seed)
                gap = "-" if own.gap_closed is None else own.gap_closed.text()
                row.append(f"{gap} ({own.worst_points:+.2f})")
            rows.append(row)
        return ["agent", *(f"seed {seed}" for seed in self._seeds)], rows

    def _caption(self) -> str:
        if not self.frame:
            return "See failures.log."
        one = self.frame[0].summary
        ceiling = 100 * float(np.mean([row.summary.ceiling_token_hit_ratio for row in self.frame]))
        spread = (
            f" Brackets: {CONFIDENCE:.0%} bootstrap interval of the mean over {len(self._seeds)} seeds."
            if len(self._seeds) > 1
            else ""
        )
        capacities = (
            "one capacity"
            if len(self._points) == 1
            else f"{len(self._points)} capacities, {self.capacities[0]} to {self.capacities[-1]}"
        )
        return (
            "Gap closed: the sum over capacities of (policy - LRU) over the sum of (optimum - LRU), of token hit "
            "ratios on the same requests; beside it the mean of the ratios at each capacity. Worst: the least policy "
            "- LRU at any capacity and seed; beside it at how many capacities and seeds the policy has more, as many, "
            f"fewer hit tokens than LRU. Capacity: {capacities}, in blocks of {one.block_size} tokens. Ceiling "
            f"(infinite cache): {ceiling:.2f} %. Sessions by {one.sessions}. An oracle sees requests to come; the "
            f"optimum is the exact bound in hit blocks.{spread}"
        )


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    head = [f"| {' | '.join(columns)} |", f"| {' | '.join(['---', *['---:'] * (len(columns) - 1)])} |"]
    return [*head, *(f"| {' | '.join(row)} |" for row in rows)]
