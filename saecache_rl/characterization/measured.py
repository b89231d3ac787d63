"""All that is measured of a workload, and the same as plain data for JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from saecache_rl.characterization import divergence, gaps, reuse
from saecache_rl.engines.capacity import Ceiling, ceiling
from saecache_rl.vocabulary import TOKEN_TYPE_NAMES
from saecache_rl.workloads.sessions import Sessions, find_sessions
from saecache_rl.workloads.trace import Trace

#: Reuse rates that the paper reports (SAECache, arXiv 2605.18825).
PAPER = {"system": 0.923, "user": 0.308, "response": 0.278, "tool_output": 0.230, "reasoning": 0.022}


@dataclass(frozen=True)
class Measured:
    """A workload's figures.

    turns: (S,) requests of each session. The others: see their modules.
    """

    name: str
    block_size: int
    requests: int
    prompt_tokens: int
    output_tokens: int
    seconds: float
    source: str
    reuse: reuse.Reuse
    gaps: list[gaps.Gaps]
    divergence: divergence.Divergence
    ceiling: Ceiling
    turns: npt.NDArray[np.int64]
    notes: dict[str, str]

    @property
    def title(self) -> str:
        """The workload in one line."""
        return (
            f"{self.name}: {self.requests:,} requests, {self.prompt_tokens:,} prompt tokens, at most "
            f"{100 * self.ceiling.token_hit_ratio:.1f} % of them from a cache"
        )


def sessions_of(trace: Trace, source: str) -> Sessions:
    """Return the sessions as the option says; "auto" takes the trace's own ids where it has any."""
    if source == "auto":
        source = "hint" if (trace.session >= 0).any() else "lineage"
    return find_sessions(trace, source)


def measure(trace: Trace, source: str) -> Measured:
    """Measure a trace; `source` is hint, lineage or auto.

    Raises:
        InputError: hint, and the trace names no sessions.
    """
    sessions = sessions_of(trace, source)
    return Measured(
        name=trace.name,
        block_size=trace.block_size,
        requests=trace.num_requests,
        prompt_tokens=int(trace.prompt_tokens.sum(dtype=np.int64)),
        output_tokens=int(trace.output_tokens.sum(dtype=np.int64)),
        seconds=float(trace.arrival[-1]),
        source=sessions.source,
        reuse=reuse.measure(trace, sessions),
        gaps=gaps.measure(trace, sessions),
        divergence=divergence.measure(trace, sessions),
        ceiling=ceiling(trace),
        turns=np.bincount(sessions.session).astype(np.int64),
        notes={key: str(value) for key, value in trace.notes.items()},
    )


def _ratio(part: float, whole: float) -> float | None:
    return float(part) / float(whole) if whole else None


def findings(measured: Measured) -> list[str]:
    """Return what a reader should take away, in words."""
    found = []
    ceiling_ratio = measured.ceiling.token_hit_ratio
    within, across = int(measured.reuse.hits[0].sum()), int(measured.reuse.hits[1].sum())
    if within + across == 0:
        found.append("No prompt shares a block with an earlier one: no policy can hit anything here.")
    else:
        share = 100 * across / (within + across)
        found.append(
            f"An infinite cache serves {100 * ceiling_ratio:.1f} % of the prompt tokens; {100 - share:.1f} % of the "
            f"matched blocks were last had by the same session, {share:.1f} % by another."
        )
    for gap in measured.gaps:
        found += _of_gaps(gap)
    found += _of_divergence(measured)
    single = float((measured.turns == 1).mean())
    found.append(
        f"{100 * single:.1f} % of the {len(measured.turns):,} sessions have one request; the mean is "
        f"{measured.turns.mean():.1f}, the longest {int(measured.turns.max()):,}."
    )
    return found


def _of_gaps(gap: gaps.Gaps) -> list[str]:
    best = gap.best
    if best is None:
        return []
    by_family = {fit.family: fit for fit in gap.fits}
    one, two = by_family["log-normal"], by_family["two log-normals"]
    text = (
        f"Gaps ({gap.kind}): one log-normal has mu {one.parameters['mu']:.2f}, sigma {one.parameters['sigma']:.2f} of "
        f"ln seconds, KS distance {one.ks:.3f}"
    )
    # Two modes are worth their three further parameters where they halve the distance and held-out gaps agree.
    better = not np.isfinite(two.held_out) or two.held_out > one.held_out
    if two.ks < 0.5 * one.ks and better:
        p = two.parameters
        return [
            f"{text}; they have two modes: {p['weight_1']:.2f} x LN({p['mu_1']:.2f}, {p['sigma_1']:.2f}) + "
            f"{p['weight_2']:.2f} x LN({p['mu_2']:.2f}, {p['sigma_2']:.2f}) fits far better, KS {two.ks:.3f}."
        ]
    return [f"{text}; the best of the four on held-out sessions is {best.family}, KS {best.ks:.3f}."]


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
    text = (
        f"{100 * parts.extending / parts.followers:.1f} % of the prompts that follow another of their session hold all "
        "its full blocks"
    )
    if not rewritten:
        return [text + "."]
    kinds = ", ".join(f"{TOKEN_TYPE_NAMES[t].replace('_', ' ')} {int(n):,}" for t, n in enumerate(parts.kinds) if n)
    text += (
        f"; {rewritten:,} part from it, at the median after {100 * float(np.median(parts.shared)):.0f} % of its blocks "
        f"(type of the first block that differs: {kinds})"
    )
    share = parts.beginning / parts.followers
    if share > 0.05:
        return [
            f"{text}. {100 * share:.1f} % part within the first {100 * divergence.BEGINNING:.0f} %: their beginning "
            "changes from request to request (a date, an id, a list in another order?), which makes every policy "
            "useless for them. Put what changes at the end of the prompt."
        ]
    return [f"{text}; {parts.beginning:,} at its beginning."]


def as_dict(measured: Measured) -> dict[str, Any]:
    """As JSON wants it; a rate that has no base is null."""
    counts = measured.reuse
    types = {}
    for t, name in enumerate(TOKEN_TYPE_NAMES):
        types[name] = {
            "distinct_blocks": int(counts.blocks[t]),
            "reuse_rate": _ratio(counts.reused[t], counts.blocks[t]),
            "reuse_rate_within_sessions": _ratio(counts.reused_by[0][t], counts.blocks[t]),
            "reuse_rate_across_sessions": _ratio(counts.reused_by[1][t], counts.blocks[t]),
            "paper_reuse_rate": PAPER.get(name),
            "matchable_blocks": int(counts.accesses[t]),
            "hit_ratio": _ratio(counts.hits[:, t].sum(), counts.accesses[t]),
            "hit_ratio_within_sessions": _ratio(counts.hits[0][t], counts.accesses[t]),
            "hit_ratio_across_sessions": _ratio(counts.hits[1][t], counts.accesses[t]),
        }
    labels = reuse.bin_labels()
    parts = measured.divergence
    return {
        "workload": measured.name,
        "block_size": measured.block_size,
        "requests": measured.requests,
        "prompt_tokens": measured.prompt_tokens,
        "output_tokens": measured.output_tokens,
        "seconds": measured.seconds,
        "sessions": measured.source,
        "ceiling_token_hit_ratio": measured.ceiling.token_hit_ratio,
        "ceiling_block_hit_ratio": measured.ceiling.block_hit_ratio,
        "findings": findings(measured),
        "reuse_by_type": types,
        "reuse_by_offset": {
            labels[b]: {"blocks": int(n), "hit_ratio": _ratio(counts.offset_hits[b], n)}
            for b, n in enumerate(counts.offset_accesses)
            if n
        },
        "distinct_blocks_by_matches": {labels[b]: int(n) for b, n in enumerate(counts.reuse_counts) if n},
        "reply_blocks": {"distinct": counts.replies, "reuse_rate": _ratio(counts.replies_reused, counts.replies)},
        "gaps": [
            {
                "kind": gap.kind,
                "count": len(gap.seconds),
                "not_above_zero": gap.zero,
                "percentiles_seconds": _percentiles(gap.seconds),
                "fits": [
                    {
                        "family": fit.family,
                        "parameters": fit.parameters,
                        "ks_distance": fit.ks,
                        "held_out_log_likelihood": fit.held_out if np.isfinite(fit.held_out) else None,
                    }
                    for fit in gap.fits
                ],
            }
            for gap in measured.gaps
        ],
        "turns": {
            "sessions": len(measured.turns),
            "mean": float(measured.turns.mean()),
            "single_share": float((measured.turns == 1).mean()),
            "percentiles": _percentiles(measured.turns.astype(np.float64)),
        },
        "divergence": {
            "followers": parts.followers,
            "extending": parts.extending,
            "at_the_beginning": parts.beginning,
            "lost_blocks": parts.lost_blocks,
            "by_type": {name: int(parts.kinds[t]) for t, name in enumerate(TOKEN_TYPE_NAMES) if parts.kinds[t]},
        },
        "notes": measured.notes,
    }


def _percentiles(values: npt.NDArray[np.float64]) -> dict[str, float] | None:
    if not len(values):
        return None
    marks = (5, 25, 50, 75, 95, 99)
    return {f"p{m}": float(v) for m, v in zip(marks, np.percentile(values, marks), strict=True)}
