"""The figure of a characterisation: six panels, one PNG file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from saecache_rl.characterization.gaps import Gaps, distribution, spread
from saecache_rl.characterization.measured import Measured
from saecache_rl.characterization.reuse import bin_labels
from saecache_rl.tracking.plots import new_figure, save_figure, thousands
from saecache_rl.vocabulary import TOKEN_TYPE_NAMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WITHIN, _ACROSS, _PLAIN = "#4a90b8", "#d1722f", "#7a8894"
_FITS = {"log-normal": "#b2182b", "two log-normals": "#1b6ca8", "exponential": "#8c8c8c", "Weibull": "#3a8f52"}


def draw(measured: Measured, path: Path) -> None:
    """Draw the panels."""
    figure = new_figure(11.5, 11.5)
    axes = figure.subplots(3, 2)
    figure.suptitle(measured.title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    _types(axes[0][0], measured)
    _offsets(axes[0][1], measured)
    _gap_density(axes[1][0], measured)
    _gap_answers(axes[1][1], measured)
    _turns(axes[2][0], measured)
    _counts(axes[2][1], measured)
    for ax in axes.flat:
        for side in ("top", "right"):
            ax.spines[side].set_visible(False)
    save_figure(figure, path)


def _title(ax: Axes, text: str) -> None:
    ax.set_title(text, loc="left", fontsize=10)


def _types(ax: Axes, measured: Measured) -> None:
    reuse = measured.reuse
    shown = [t for t in range(len(TOKEN_TYPE_NAMES)) if reuse.accesses[t] or reuse.blocks[t]]
    place = np.arange(len(shown))
    accesses = np.maximum(reuse.accesses[shown], 1)
    within, across = 100 * reuse.hits[0][shown] / accesses, 100 * reuse.hits[1][shown] / accesses
    ax.barh(place, within, color=_WITHIN, label="matched, last had by the same session")
    ax.barh(place, across, left=within, color=_ACROSS, label="matched, last had by another session")
    rates = 100 * reuse.reused[shown] / np.maximum(reuse.blocks[shown], 1)
    ax.plot(
        rates, place, "D", color="black", markersize=5, label="distinct blocks matched at least once", clip_on=False
    )
    ax.set_yticks(place, [TOKEN_TYPE_NAMES[t].replace("_", " ") for t in shown])
    ax.invert_yaxis()
    ax.set_xlim(0, 100)
    ax.set_xlabel("%")
    ax.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.45, -0.16), ncols=1)
    _title(ax, "Blocks matched by token type, infinite cache")


def _offsets(ax: Axes, measured: Measured) -> None:
    reuse = measured.reuse
    shown = np.flatnonzero(reuse.offset_accesses)
    rate = 100 * reuse.offset_hits[shown] / reuse.offset_accesses[shown]
    ax.plot(np.arange(len(shown)), rate, "o-", color=_WITHIN)
    ax.set_xticks(np.arange(len(shown)), [bin_labels()[b] for b in shown], rotation=45, ha="right", fontsize=8)
    ax.set_ylim(0, 102)
    ax.set_ylabel("blocks matched, %")
    ax.set_xlabel(f"index of the block in its prompt (blocks of {measured.block_size} tokens)")
    ax.grid(color="#e3e3e3", linewidth=0.6)
    _title(ax, "Blocks matched by place in the prompt")


def _nothing(ax: Axes, text: str) -> None:
    ax.text(0.5, 0.5, text, ha="center", va="center", fontsize=9, color="#666666", transform=ax.transAxes)
    ax.set_xticks([])
    ax.set_yticks([])


def _seconds_axis(ax: Axes) -> None:
    ax.set_xscale("log")
    ax.set_xlabel("gap, seconds")


def _gap_density(ax: Axes, measured: Measured) -> None:
    """Draw the density per ln second, in which a log-normal is a bell."""
    _title(ax, "Gaps between a session's requests, and fits")
    gaps = measured.gaps[0] if measured.gaps else None
    if gaps is None or not gaps.fits:
        _nothing(ax, "too few gaps to fit")
        return
    logs = np.log(spread(gaps.seconds))
    low, high = np.percentile(logs, [0.1, 99.9])
    edges = np.linspace(low - 0.5, high + 0.5, 50)
    ax.hist(np.exp(logs), bins=list(np.exp(edges)), weights=_weights(logs, edges), color="#d9dfe4")
    for fit in gaps.fits:
        curve = np.diff(distribution(fit.family, fit.parameters, np.exp(edges))) / np.diff(edges)
        label = f"{fit.family}, KS {fit.ks:.3f}"
        ax.plot(np.exp((edges[1:] + edges[:-1]) / 2), curve, color=_FITS[fit.family], label=label, linewidth=1.6)
    _seconds_axis(ax)
    ax.set_ylabel("density per ln second")
    ax.legend(fontsize=8, frameon=False)


def _weights(logs: np.ndarray, edges: np.ndarray) -> np.ndarray:
    return np.full(len(logs), 1 / (len(logs) * (edges[1] - edges[0])))


def _gap_answers(ax: Axes, measured: Measured) -> None:
    _title(ax, "Gaps by who answers the reply before")
    shown: list[Gaps] = [g for g in measured.gaps if len(g.seconds)]
    if not shown:
        _nothing(ax, "no session has a second request")
        return
    colours = {"all": "#4d4d4d", "a tool": _WITHIN, "no tool": _ACROSS}
    for gaps in shown:
        colour = next(c for name, c in colours.items() if gaps.kind.startswith(name))
        style = "-" if "start to start" in gaps.kind else "--"
        share = 100 * np.arange(1, len(gaps.seconds) + 1) / len(gaps.seconds)
        ax.plot(gaps.seconds, share, style, color=colour, label=gaps.kind, linewidth=1.5)
    _seconds_axis(ax)
    ax.set_ylabel("gaps not longer, %")
    ax.grid(color="#e3e3e3", linewidth=0.6)
    ax.legend(fontsize=7.5, frameon=False, loc="upper center", bbox_to_anchor=(0.45, -0.16), ncols=2)


def _turns(ax: Axes, measured: Measured) -> None:
    turns = np.sort(measured.turns)
    edges = np.unique(np.round(np.geomspace(1, max(int(turns[-1]) + 1, 2), 30)).astype(np.int64))
    counts, _ = np.histogram(turns, edges)
    ax.bar(edges[:-1], 100 * counts / len(turns), width=np.diff(edges), align="edge", color=_PLAIN, edgecolor="white")
    if turns[-1] > 12:
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(thousands())
    ax.set_xlabel("requests of a session")
    ax.set_ylabel("sessions, %")
    _title(ax, f"Turns: {len(turns):,} sessions, mean {turns.mean():.1f}, median {np.median(turns):g}")


def _counts(ax: Axes, measured: Measured) -> None:
    counts = measured.reuse.reuse_counts
    shown = np.arange(int(np.flatnonzero(counts)[-1]) + 1) if counts.any() else np.arange(1)
    ax.bar(shown, 100 * counts[shown] / max(int(counts.sum()), 1), color=_PLAIN)
    ax.set_xticks(shown, [bin_labels()[b] for b in shown], rotation=45, ha="right", fontsize=8)
    ax.set_xlabel("times that a block is matched")
    ax.set_ylabel("distinct blocks, %")
    _title(ax, "Distinct blocks by how often they are matched")
