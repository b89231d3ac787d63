"""The figures of a run and of a comparison, as PNG files, drawn without a display."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from saecache_rl.cache.params import ParamSpace
from saecache_rl.workloads.sessions import Sessions
from saecache_rl.workloads.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Reals = npt.NDArray[np.float64]

#: At most so many points of a hit-ratio line, so that noise between windows does not hide the course.
_POINTS = 70
_PHASE_COLOURS = ("#f2f2f2", "#dfe7f1", "#f3e9dc", "#e3efe3", "#efe3ec", "#f1efd9")
_KIND_COLOURS = {"single-turn": "#c9c9c9", "chat": "#7aa6c2", "agentic": "#d98f5c"}
_AGENT, _LRU, _OPTIMUM, _CEILING = "#b2182b", "#4d4d4d", "#2166ac", "#8c8c8c"
_LINES = ("#1b6ca8", "#d1722f", "#3a8f52", "#8a4fa0", "#a8323e", "#6b6b6b", "#b09a2a", "#27929b")
_PARAMETERS = {
    "alpha": "alpha\nqueue weight",
    "weight": "w\ntoken type",
    "mu": "mu\nln gap s",
    "sigma": "sigma\nln gap s",
    "gamma": "gamma\nposition",
}


@dataclass(frozen=True)
class Course:
    """How a run went.

    Attributes:
        trace, sessions: what was served.
        window: requests of a window.
        num_blocks: capacity.
        agent: its name.
        hit_tokens: (R,) by name of line: the agent's, ``LRU``, ``optimum``, ``ceiling``.
        space: parameters of the policy.
        params: (W, n) their values in each window.
    """

    trace: Trace
    sessions: Sessions
    window: int
    num_blocks: int
    agent: str
    hit_tokens: Mapping[str, npt.NDArray[Any]]
    space: ParamSpace
    params: Reals


def plot_run(course: Course, path: Path) -> None:
    """Draw phases, request mix, hit ratio and parameters over the requests served."""
    groups = _parameter_groups(course.space)
    heights = [1.1, 2.6] + [1.3] * len(groups)
    figure = new_figure(10.5, 1.1 + 1.12 * sum(heights))
    axes = figure.subplots(len(heights), 1, sharex=True, gridspec_kw={"height_ratios": heights})
    trace = course.trace
    ratio = _ratio(course.hit_tokens[course.agent], trace)
    figure.suptitle(
        f"{course.agent} on {trace.name}: {100 * ratio:.1f} % of prompt tokens hit, "
        f"{course.num_blocks:,} blocks of {trace.block_size} tokens",
        x=0.01,
        ha="left",
        fontsize=12,
        fontweight="bold",
    )
    for i, ax in enumerate(axes):
        _shade_phases(ax, trace, labelled=i == 0)
    _draw_mix(axes[0], course)
    _draw_hit_ratio(axes[1], course)
    for ax, (group, indices) in zip(axes[2:], groups.items(), strict=True):
        _draw_parameters(ax, course, group, indices)
    axes[-1].set_xlabel("requests served")
    axes[-1].set_xlim(0, trace.num_requests)
    axes[-1].xaxis.set_major_formatter(thousands())
    figure.align_ylabels(list(axes))
    save_figure(figure, path)


@dataclass(frozen=True)
class Curve:
    """Token hit ratios of one agent over capacities.

    Attributes:
        name: of the agent.
        num_blocks, mean: (P,) capacities, and means over seeds.
        low, high: (P,) bounds over seeds, or None with one seed.
    """

    name: str
    num_blocks: Reals
    mean: Reals
    low: Reals | None = None
    high: Reals | None = None


def plot_comparison(
    path: Path, title: str, curves: Sequence[Curve], lru: Curve, optimum: Curve, ceiling_ratio: float, block_size: int
) -> None:
    """Draw hit ratio over capacity, the agents between LRU and the optimum, below the ceiling."""
    figure = new_figure(9.0, 7.4)
    ax, below = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [3, 2]})
    marker = "o" if len(lru.num_blocks) < 30 else None
    dashed: dict[str, Any] = {"linestyle": "--", "marker": marker, "markersize": 3}
    ax.fill_between(lru.num_blocks, 100 * lru.mean, 100 * optimum.mean, color="#eef2f6", zorder=0)
    ax.axhline(100 * ceiling_ratio, color=_CEILING, linestyle=":", linewidth=1.4, label="ceiling (infinite cache)")
    ax.plot(optimum.num_blocks, 100 * optimum.mean, color=_OPTIMUM, label="optimum (oracle)", **dashed)
    below.plot(optimum.num_blocks, 100 * (optimum.mean - lru.mean), color=_OPTIMUM, **dashed)
    below.fill_between(lru.num_blocks, 0 * lru.mean, 100 * (optimum.mean - lru.mean), color="#eef2f6", zorder=0)
    others = [c for c in curves if c.name not in ("lru", "optimum")]
    for i, curve in enumerate(others):
        colour = _LINES[(i + 1) % len(_LINES)] if len(others) > 1 else _AGENT
        style: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 3.5, "linewidth": 1.8}
        ax.plot(curve.num_blocks, 100 * curve.mean, label=curve.name, **style)
        if curve.low is not None and curve.high is not None:
            ax.fill_between(curve.num_blocks, 100 * curve.low, 100 * curve.high, color=colour, alpha=0.15, linewidth=0)
        shared, own, base = np.intersect1d(curve.num_blocks, lru.num_blocks, return_indices=True)
        below.plot(shared, 100 * (curve.mean[own] - lru.mean[base]), **style)
    ax.plot(lru.num_blocks, 100 * lru.mean, color=_LRU, label="LRU", **dashed)
    below.axhline(0.0, color=_LRU, linestyle="--", linewidth=1.5)
    if len(lru.num_blocks) > 1 and lru.num_blocks.min() > 0 and lru.num_blocks.max() / lru.num_blocks.min() > 4:
        below.set_xscale("log")
        below.xaxis.set_major_locator(few_logarithmic())
        below.xaxis.set_minor_formatter(no_labels())
    below.xaxis.set_major_formatter(thousands())
    below.set_xlabel(f"capacity, blocks of {block_size} tokens")
    ax.set_ylabel("token hit ratio, %")
    below.set_ylabel("points above LRU")
    for panel in (ax, below):
        panel.grid(color="#e3e3e3", linewidth=0.6)
    ax.legend(frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=9)
    ax.set_title(title, loc="left", fontsize=12, fontweight="bold")
    figure.align_ylabels([ax, below])
    save_figure(figure, path)


def _draw_mix(ax: Axes, course: Course) -> None:
    """Share of each kind of session among the requests, as it turned out."""
    agentic = course.sessions.agentic.astype(bool)
    turns = np.bincount(course.sessions.session)[course.sessions.session]
    kinds = {"single-turn": (turns == 1) & ~agentic, "chat": (turns > 1) & ~agentic, "agentic": agentic}
    bounds = _bounds(course)
    count = np.diff(bounds)
    shares = [100 * np.add.reduceat(mask.astype(np.int64), bounds[:-1]) / count for mask in kinds.values()]
    steps = [np.append(share, share[-1]) for share in shares]
    ax.stackplot(
        bounds,
        *steps,
        labels=list(kinds),
        colors=[_KIND_COLOURS[k] for k in kinds],
        step="post",
        alpha=0.9,
        linewidth=0,
    )
    ax.set_ylim(0, 100)
    ax.set_ylabel("requests, %")
    _legend(ax)


def _draw_hit_ratio(ax: Axes, course: Course) -> None:
    bounds = _bounds(course)
    middle = (bounds[:-1] + bounds[1:]) / 2
    prompt = np.add.reduceat(course.trace.prompt_tokens.astype(np.int64), bounds[:-1])
    styles = {
        "ceiling": {"color": _CEILING, "linestyle": ":", "linewidth": 1.2},
        "optimum": {"color": _OPTIMUM, "linestyle": "--", "linewidth": 1.3},
        "LRU": {"color": _LRU, "linestyle": "-", "linewidth": 1.3},
    }
    least = 100.0
    for name, hits in course.hit_tokens.items():
        style: dict[str, Any] = styles.get(name, {"color": _AGENT, "linestyle": "-", "linewidth": 2.0, "zorder": 5})
        label = f"{name}  {100 * _ratio(hits, course.trace):.1f} %"
        line = 100 * np.add.reduceat(hits.astype(np.int64), bounds[:-1]) / prompt
        least = min(least, float(line.min()))
        ax.plot(middle, line, label=label, **style)
    ax.set_ylim(max(0.0, 10 * (least // 10) - 5), 100)
    ax.set_ylabel("token hit ratio, %")
    ax.grid(axis="y", color="white", linewidth=0.8)
    _legend(ax)


def _draw_parameters(ax: Axes, course: Course, group: str, indices: Sequence[int]) -> None:
    starts = np.arange(len(course.params)) * course.window
    edges = np.append(starts, course.trace.num_requests)
    for i, index in enumerate(indices):
        values = course.params[:, index]
        label = course.space.names[index].partition(".")[2] or group
        ax.step(
            edges,
            np.append(values, values[-1]),
            where="post",
            color=_LINES[i % len(_LINES)],
            linewidth=1.3,
            label=label.replace("_", " "),
        )
    shown = course.params[:, list(indices)]
    logarithmic = all(course.space.params[i].scale == "log" for i in indices) and shown.max() > 3 * shown.min()
    if logarithmic:
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(few_logarithmic())
        ax.yaxis.set_major_formatter(plain_numbers())
        ax.yaxis.set_minor_formatter(no_labels())
    else:
        margin = max(0.08 * (shown.max() - shown.min()), 0.02 * max(abs(float(shown.max())), 1.0))
        ax.set_ylim(float(shown.min()) - margin, float(shown.max()) + margin)
    ax.set_ylabel(_PARAMETERS.get(group, group))
    ax.grid(axis="y", color="white", linewidth=0.8)
    if len(indices) > 1:
        _legend(ax)


def _parameter_groups(space: ParamSpace) -> dict[str, list[int]]:
    """Indices of the parameters by the first part of their names, in order."""
    groups: dict[str, list[int]] = {}
    for i, name in enumerate(space.names):
        groups.setdefault(name.partition(".")[0], []).append(i)
    return groups


def _shade_phases(ax: Axes, trace: Trace, labelled: bool) -> None:
    """Shade the stretches of each phase, and name them above the first panel."""
    ax.set_facecolor(_PHASE_COLOURS[0])
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    starts = np.concatenate([[0], np.flatnonzero(np.diff(trace.phase)) + 1])
    ends = np.append(starts[1:], trace.num_requests)
    if len(trace.phases) < 2 or len(starts) > 12:
        return
    for start, end in zip(starts, ends, strict=True):
        phase = int(trace.phase[start])
        ax.axvspan(start, end, color=_PHASE_COLOURS[(1 + phase) % len(_PHASE_COLOURS)], zorder=0, linewidth=0)
        if start:
            ax.axvline(start, color="#555555", linewidth=0.8, linestyle=(0, (4, 3)), zorder=4)
        if labelled and end - start > 0.05 * trace.num_requests:
            name = trace.phases[phase].replace("_", " ")
            ax.annotate(
                name,
                ((start + end) / 2, 1.05),
                xycoords=("data", "axes fraction"),
                ha="center",
                va="bottom",
                fontsize=10,
            )


def _bounds(course: Course) -> npt.NDArray[np.int64]:
    """Edges, in requests, of the points of a line: whole windows, at most `_POINTS` of them."""
    windows = -(-course.trace.num_requests // course.window)
    step = course.window * max(1, -(-windows // _POINTS))
    return np.append(np.arange(0, course.trace.num_requests, step), course.trace.num_requests).astype(np.int64)


def _ratio(hits: npt.NDArray[Any], trace: Trace) -> float:
    return float(hits.sum(dtype=np.int64) / trace.prompt_tokens.sum(dtype=np.int64))


def _legend(ax: Axes) -> None:
    ax.legend(
        loc="center left", bbox_to_anchor=(1.005, 0.5), frameon=False, fontsize=8.5, labelspacing=0.3, handlelength=1.4
    )


def new_figure(width: float, height: float) -> Figure:
    """Make an empty figure of so many inches, drawn without a display."""
    _give_matplotlib_a_folder()
    import matplotlib as mpl  # takes half a second
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context({"axes.labelsize": 9, "xtick.labelsize": 8.5, "ytick.labelsize": 8.5}):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(png(figure))
    partial.replace(path)


def png(figure: Figure) -> bytes:
    """Return a figure as the content of a PNG file."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=130, facecolor="white")
    return content.getvalue()


def _give_matplotlib_a_folder() -> None:
    """Without a writable home matplotlib would print a warning and do the same."""
    home = Path(os.path.expanduser("~"))
    if "MPLCONFIGDIR" not in os.environ and not (home.is_dir() and os.access(home, os.W_OK)):
        os.environ["MPLCONFIGDIR"] = str(Path(tempfile.gettempdir()) / "saecache-rl-matplotlib")
        Path(os.environ["MPLCONFIGDIR"]).mkdir(exist_ok=True)


def thousands() -> Any:
    """Return a formatter of numbers with commas."""
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda value, _: f"{value:,.0f}")


def plain_numbers() -> Any:
    """Return a formatter of numbers as they are said."""
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1000 else f"{value:g}")


def few_logarithmic() -> Any:
    """Return a locator of 1, 2, 5 and their powers of ten."""
    from matplotlib.ticker import LogLocator

    return LogLocator(base=10, subs=(1.0, 2.0, 5.0))


def no_labels() -> Any:
    """Return a formatter that says nothing."""
    from matplotlib.ticker import NullFormatter

    return NullFormatter()
