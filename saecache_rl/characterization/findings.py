"""What a reader should take away from a workload's figures, in sentences."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from saecache_rl.characterization import divergence, gaps, reuse
from saecache_rl.characterization.measured import Measured
from saecache_rl.vocabulary import TOKEN_TYPE_NAMES

_UNITS = (("days", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0))


class Captions(NamedTuple):
    """What each panel of the figure says, a sentence each."""

    types: str
    offsets: str
    gaps: str
    answers: str
    turns: str
    matches: str


def percent(part: float, whole: float = 1.0) -> str:
    """Return a share with one decimal, with two where one would round it to all or nothing; "-" of nothing."""
    if not whole:
        return "-"
    share = 100 * part / whole
    if 0 < share < 0.05 or 99.95 <= share < 100:
        return "below 0.01 %" if share < 0.005 else "above 99.99 %" if share >= 99.995 else f"{share:.2f} %"
    return f"{share:.1f} %"


def type_name(token_type: int) -> str:
    """Return the name of a token type in words."""
    return TOKEN_TYPE_NAMES[token_type].replace("_", " ")


def findings(measured: Measured) -> list[str]:
    """Return the sentences, the most important first."""
    found = [_of_ceiling(measured)]
    for gap in measured.gaps:
        found += _of_gaps(gap)
    found += _of_divergence(measured)
    turns, single = measured.turns, int(np.count_nonzero(measured.turns == 1))
    if len(turns) == 1:
        return [*found, _of_turns(measured)]
    share = "None" if not single else "All" if single == len(turns) else percent(single, len(turns))
    return [
        *found,
        f"{share} of the {len(turns):,} sessions have only one request; the mean is {turns.mean():.1f}, the longest "
        f"{int(turns.max()):,}.",
    ]


def _of_ceiling(measured: Measured) -> str:
    within, across = (int(hits.sum()) for hits in measured.reuse.hits)
    if within + across == 0:
        return "No prompt shares a block with an earlier one: no policy can hit anything here."
    return (
        f"An infinite cache serves {percent(measured.ceiling.token_hit_ratio)} of the prompt tokens; "
        f"{percent(within, within + across)} of the matched blocks were last had by the same session, "
        f"{percent(across, within + across)} by another."
    )


def _of_gaps(gap: gaps.Gaps) -> list[str]:
    best, one = gap.best, gap.above_zero
    if best is None or one is None:
        return []
    by_family = {fit.family: fit for fit in gap.fits}
    single, two = by_family["log-normal"], by_family["two log-normals"]
    text = (
        f"Gaps ({gap.kind}): one log-normal has mu {one.mu:.2f}, sigma {one.sigma:.2f} of ln seconds, KS distance "
        f"{single.ks:.3f}"
    )
    if gap.floored is not None:
        text += f" (with {gap.zero:,} of no length as 1 ms {gap.floored.mu:.2f}, {gap.floored.sigma:.2f})"
    # Two modes are worth their three further parameters where they halve the distance and held-out gaps agree.
    better = not np.isfinite(two.held_out) or two.held_out > single.held_out
    if two.ks < 0.5 * single.ks and better:
        return [f"{text}; they have two modes: {parameters(two)} fits far better, KS {two.ks:.3f}."]
    return [f"{text}; the best of the four on held-out sessions is {best.family}, KS {best.ks:.3f}."]


def parameters(fit: gaps.Fit) -> str:
    """Return a fit's parameters in the usual notation."""
    p = fit.parameters
    if fit.family == "log-normal":
        return f"LN({p['mu']:.2f}, {p['sigma']:.2f})"
    if fit.family == "two log-normals":
        return " + ".join(f"{p[f'weight_{k}']:.2f} x LN({p[f'mu_{k}']:.2f}, {p[f'sigma_{k}']:.2f})" for k in (1, 2))
    if fit.family == "exponential":
        return f"mean {duration(p['mean'])}"
    return f"shape {p['shape']:.2f}, scale {duration(p['scale'])}"


def duration(seconds: float) -> str:
    """Return a time with two digits, or more before its point, in a unit that suits it."""
    value, unit = next(
        ((seconds / size, name) for name, size in _UNITS if seconds >= (1 if name == "s" else 2 * size)),
        (1000 * seconds, "ms"),
    )
    return f"{value:,.0f} {unit}" if value >= 9.95 else f"{value:.1f} {unit}"


def _of_divergence(measured: Measured) -> list[str]:
    parts = measured.divergence
    if not parts.followers:
        return []
    if measured.source == "lineage":
        return [
            "Sessions are inferred by what prompts extend, so that a history that is rewritten shows as a new session: "
            "where prompts of one session part can't be seen without the clients' ids."
        ]
    rewritten = parts.followers - parts.extending
    whole = "All" if not rewritten else percent(parts.extending, parts.followers)
    text = f"{whole} of the prompts that follow another of their session hold all its full blocks"
    if not rewritten:
        return [text + "."]
    kinds = ", ".join(f"{type_name(t)} {int(n):,}" for t, n in enumerate(parts.kinds) if n)
    text += (
        f"; {rewritten:,} part from it, at the median after {percent(float(np.median(parts.shared)))} of its blocks"
        + (f" (type of the first block that differs: {kinds})" if kinds else "")
    )
    if parts.beginning > 0.05 * parts.followers:
        return [
            f"{text}. {percent(parts.beginning, parts.followers)} part within the first "
            f"{100 * divergence.BEGINNING:.0f} %: their beginning changes from request to request (a date, an id, a "
            "list in another order?), which makes every policy useless for them. Put what changes at the end of the "
            "prompt."
        ]
    return [f"{text}; {parts.beginning:,} at its beginning."]


def captions(measured: Measured) -> Captions:
    """Return what the panels say."""
    return Captions(
        types=_of_types(measured.reuse),
        offsets=_of_offsets(measured.reuse),
        gaps=_of_density(measured.gaps),
        answers=_of_answers(measured.gaps),
        turns=_of_turns(measured),
        matches=_of_matches(measured.reuse),
    )


def _of_types(counts: reuse.Reuse) -> str:
    accessed = np.flatnonzero(counts.accesses)
    if not len(accessed):
        return "No prompt has a full block."
    ratios = counts.hits.sum(axis=0)[accessed] / counts.accesses[accessed]
    low, high = accessed[int(ratios.argmin())], accessed[int(ratios.argmax())]
    if low == high:
        return f"{percent(float(ratios.max()))} of the {type_name(int(high))} blocks are matched."
    return (
        f"Matched most often: {type_name(int(high))} blocks ({percent(float(ratios.max()))}); least: "
        f"{type_name(int(low))} blocks ({percent(float(ratios.min()))})."
    )


def _of_offsets(counts: reuse.Reuse) -> str:
    shown = np.flatnonzero(counts.offset_accesses)
    if not len(shown):
        return "No prompt has a full block."
    first, last = (percent(counts.offset_hits[b], counts.offset_accesses[b]) for b in (shown[0], shown[-1]))
    if len(shown) == 1:
        return f"Of the prompts' first blocks, {first} are matched; no prompt has more."
    return f"Of the prompts' first blocks {first} are matched, at index {reuse.bin_labels()[shown[-1]]} {last}."


def _of_density(found: list[gaps.Gaps]) -> str:
    gap = found[0] if found else None
    if gap is None or gap.best is None:
        return "Too few gaps to fit a distribution."
    low, high = np.percentile(gap.seconds, [25, 75])
    if "log-normal" in gap.best.family:
        said = f"of the four, {gap.best.family} predict held-out sessions best"
        said = said.replace("log-normal predict", "one log-normal predicts")
    else:
        said = f"of the four, the {gap.best.family} distribution predicts held-out sessions best"
    if not np.isfinite(gap.best.held_out):
        said = f"{gap.best.family} is nearest (KS {gap.best.ks:.3f})"
    return f"Half of the gaps from start to start last {duration(float(low))} to {duration(float(high))}; {said}."


def _of_answers(found: list[gaps.Gaps]) -> str:
    shown = [g for g in found if len(g.seconds) and "start to start" in g.kind]
    if not shown:
        return "No session has a second request after a pause."
    medians = {g.kind.partition(",")[0]: duration(float(np.median(g.seconds))) for g in shown}
    if gaps.TOOL in medians and gaps.NO_TOOL in medians:
        return (
            f"The median gap from start to start is {medians[gaps.TOOL]} where a tool answers, {medians[gaps.NO_TOOL]} "
            "where no tool call is seen."
        )
    return f"The median gap from start to start is {medians[gaps.ALL]}; all replies are alike in who answers them."


def _of_turns(measured: Measured) -> str:
    turns, longest = measured.turns, f"the longest {int(measured.turns.max()):,}"
    single = int(np.count_nonzero(turns == 1))
    if len(turns) == 1:
        return f"The one session has {int(turns[0]):,} request{'s' if turns[0] > 1 else ''}."
    if 2 * single >= len(turns):
        return f"Of the {len(turns):,} sessions, {percent(single, len(turns))} have only one request, {longest}."
    return f"Half of the {len(turns):,} sessions have at least {int(np.ceil(np.median(turns))):,} requests, {longest}."


def _of_matches(counts: reuse.Reuse) -> str:
    total = int(counts.reuse_counts.sum())
    if not total:
        return "There is no full block."
    half = int(np.searchsorted(np.cumsum(counts.reuse_counts), total / 2))
    never = percent(counts.reuse_counts[0], total)
    if half == 0:
        return f"{never} of the distinct blocks are never matched: keeping those is in vain."
    return f"{never} of the distinct blocks are never matched; the median one {reuse.bin_labels()[half]} times."
