"""The figure of a characterisation: six panels, together in one PNG file or each by itself."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from saecache_rl.characterization.findings import captions, type_name
from saecache_rl.characterization.gaps import ALL, NO_TOOL, TOOL, Gaps, distribution, spread
from saecache_rl.characterization.measured import Measured
from saecache_rl.characterization.reuse import bin_starts
from saecache_rl.tracking.plots import few_logarithmic, new_figure, no_labels, plain_numbers, png, save_figure
from saecache_rl.vocabulary import NUM_TOKEN_TYPES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WITHIN, _ACROSS, _PLAIN, _GRID = "#4a90b8", "#d1722f", "#7a8894", "#e3e3e3"
_FITS = {"log-normal": "#b2182b", "two log-normals": "#1b6ca8", "exponential": "#8c8c8c", "Weibull": "#3a8f52"}
_ANSWERS = {ALL: "#4d4d4d", TOOL: _WITHIN, NO_TOOL: _ACROSS}


class Panel(NamedTuple):
    """A panel by itself: its title, the sentence that it says, and its PNG file's content."""

    title: str
    caption: str
    picture: bytes


def draw(measured: Measured, path: Path) -> None:
    """Draw the panels into one file."""
    figure = new_figure(12.5, 13.0)
    axes = figure.subplots(3, 2)
    figure.suptitle(measured.title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    for ax, (title, draw_panel), caption in zip(axes.flat, _PANELS, captions(measured), strict=True):
        draw_panel(ax, measured)
        _finish(ax)
        ax.set_title(title + "\n" + "\n".join(textwrap.wrap(caption, 88)), loc="left", fontsize=9)
    save_figure(figure, path)


def panels(measured: Measured) -> list[Panel]:
    """Draw each panel by itself."""
    drawn = []
    for (title, draw_panel), caption in zip(_PANELS, captions(measured), strict=True):
        figure = new_figure(5.6, 3.9)
        ax = figure.subplots()
        draw_panel(ax, measured)
        _finish(ax)
        drawn.append(Panel(title, caption, png(figure)))
    return drawn


def _finish(ax: Axes) -> None:
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    ax.set_axisbelow(True)


def _types(ax: Axes, measured: Measured) -> None:
    reuse = measured.reuse
    shown = [t for t in range(NUM_TOKEN_TYPES) if reuse.accesses[t] or reuse.blocks[t]]
    if not shown:
        _nothing(ax, "no request has a full block")
        return
    place = np.arange(len(shown))
    accesses = np.maximum(reuse.accesses[shown], 1)
    within, across = 100 * reuse.hits[0][shown] / accesses, 100 * reuse.hits[1][shown] / accesses
    ax.barh(place, within, color=_WITHIN, label="of blocks looked up: matched, last had by the same session")
    ax.barh(
        place, across, left=within, color=_ACROSS, label="of blocks looked up: matched, last had by another session"
    )
    rates = 100 * reuse.reused[shown] / np.maximum(reuse.blocks[shown], 1)
    ax.plot(rates, place, "D", color="black", markersize=5, label="of distinct blocks: ever matched", clip_on=False)
    ax.set_yticks(place, [type_name(t) for t in shown])
    spare = max(0.0, (4 - len(shown)) / 2)
    ax.set_ylim(len(shown) - 0.5 + spare, -0.5 - spare)
    ax.set_xlim(0, 100)
    ax.set_xlabel("%")
    _legend_below(ax)


def _offsets(ax: Axes, measured: Measured) -> None:
    reuse = measured.reuse
    shown = np.flatnonzero(reuse.offset_accesses)
    if not len(shown):
        _nothing(ax, "no prompt has a full block")
        return
    rate = 100 * reuse.offset_hits[shown] / reuse.offset_accesses[shown]
    ax.plot(np.arange(len(shown)), rate, "o-", color=_WITHIN, markersize=4)
    _binned(ax, shown)
    ax.set_ylim(0, 103)
    ax.set_ylabel("blocks matched, %")
    ax.set_xlabel(f"index of the block (of {measured.block_size} tokens) in its prompt, each mark up to the next")
    ax.grid(color=_GRID, linewidth=0.6)


def _binned(ax: Axes, shown: np.ndarray) -> None:
    """Mark the bins by where they start; k is 1,024."""
    ax.set_xticks(np.arange(len(shown)), [_short(bin_starts()[b]) for b in shown], fontsize=7.5)


def _short(value: int) -> str:
    for size, letter in ((2**20, "M"), (2**10, "k")):
        if value >= size:
            return f"{value // size}{letter}"
    return str(value)


def _nothing(ax: Axes, text: str) -> None:
    ax.text(0.5, 0.5, text, ha="center", va="center", fontsize=9, color="#666666", transform=ax.transAxes)
    ax.set_xticks([])
    ax.set_yticks([])


def _logarithmic(ax: Axes) -> None:
    """A logarithmic axis with numbers as they are said."""
    from matplotlib.ticker import LogLocator

    low, high = ax.get_xlim()
    ax.xaxis.set_major_locator(few_logarithmic() if high < 200 * low else LogLocator(base=10))
    ax.xaxis.set_major_formatter(plain_numbers())
    ax.xaxis.set_minor_formatter(no_labels())


def _gap_density(ax: Axes, measured: Measured) -> None:
    """Draw the density per ln second, in which a log-normal is a bell."""
    gaps = measured.gaps[0] if measured.gaps else None
    if gaps is None or not gaps.fits:
        _nothing(ax, "too few gaps to fit")
        return
    logs = np.log(spread(gaps.seconds))
    low, high = np.percentile(logs, [0.1, 99.9])
    edges = np.linspace(low - 0.5, high + 0.5, 50)
    weights = np.full(len(logs), 1 / (len(logs) * (edges[1] - edges[0])))
    ax.hist(np.exp(logs), bins=list(np.exp(edges)), weights=weights, color="#d9dfe4", label="gaps from start to start")
    for fit in gaps.fits:
        curve = np.diff(distribution(fit.family, fit.parameters, np.exp(edges))) / np.diff(edges)
        label = f"{fit.family}, KS {fit.ks:.3f}"
        ax.plot(np.exp((edges[1:] + edges[:-1]) / 2), curve, color=_FITS[fit.family], label=label, linewidth=1.6)
    ax.set_xscale("log")
    _logarithmic(ax)
    ax.set_xlabel("gap, seconds")
    ax.set_ylabel("density per ln second")
    _legend_below(ax, 2)


def _gap_answers(ax: Axes, measured: Measured) -> None:
    shown: list[Gaps] = [g for g in measured.gaps if len(g.seconds)]
    if not shown:
        _nothing(ax, "no session has a second request after a pause")
        return
    for gaps in shown:
        who = gaps.kind.partition(",")[0]
        style = "-" if "start to start" in gaps.kind else "--"
        share = 100 * np.arange(1, len(gaps.seconds) + 1) / len(gaps.seconds)
        ax.plot(gaps.seconds, share, style, color=_ANSWERS[who], label=gaps.kind, linewidth=1.5)
    low = min(float(np.percentile(g.seconds, 0.1)) for g in shown)
    high = max(float(np.percentile(g.seconds, 99.9)) for g in shown)
    ax.set_xlim(low / 1.5, high * 1.5)
    ax.set_xscale("log")
    _logarithmic(ax)
    ax.set_ylim(0, 103)
    ax.set_xlabel("gap, seconds")
    ax.set_ylabel("gaps not longer, %")
    ax.grid(color=_GRID, linewidth=0.6)
    _legend_below(ax)


def _turns(ax: Axes, measured: Measured) -> None:
    """Draw the share of sessions that are at least so long, which needs no bins."""
    turns = np.sort(measured.turns)
    lengths, first = np.unique(turns, return_index=True)
    share = 100 * (1 - first / len(turns))
    ax.step(np.append(lengths, lengths[-1]), np.append(share, 0.0), where="pre", color=_PLAIN, linewidth=1.8)
    ax.set_xlim(0.9, max(10.0, 1.2 * float(turns[-1])))
    if turns[-1] > 12:
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(few_logarithmic())
        ax.xaxis.set_minor_formatter(no_labels())
    ax.xaxis.set_major_formatter(plain_numbers())
    ax.set_ylim(0, 103)
    ax.set_xlabel("requests of a session")
    ax.set_ylabel("sessions with at least so many, %")
    ax.grid(color=_GRID, linewidth=0.6)


def _matches(ax: Axes, measured: Measured) -> None:
    counts = measured.reuse.reuse_counts
    if not counts.any():
        _nothing(ax, "no request has a full block")
        return
    shown = np.arange(int(np.flatnonzero(counts)[-1]) + 1)
    ax.bar(np.arange(len(shown)), 100 * counts[shown] / int(counts.sum()), color=_PLAIN)
    _binned(ax, shown)
    ax.set_xlabel("times that a block is matched, each mark up to the next")
    ax.set_ylabel("distinct blocks, %")


def _legend_below(ax: Axes, columns: int = 1) -> None:
    ax.legend(fontsize=7.5, frameon=False, loc="upper left", bbox_to_anchor=(-0.02, -0.15), ncols=columns)


_PANELS: tuple[tuple[str, Callable[[Axes, Measured], None]], ...] = (
    ("Blocks matched, by token type", _types),
    ("Blocks matched, by place in the prompt", _offsets),
    ("Gaps between a session's requests, and fits", _gap_density),
    ("Gaps by who answers the reply before", _gap_answers),
    ("Requests of a session", _turns),
    ("How often a block is matched", _matches),
)
