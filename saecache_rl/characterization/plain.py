"""A workload's figures as plain data, for JSON."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from saecache_rl.characterization import gaps, reuse
from saecache_rl.characterization.findings import captions, findings
from saecache_rl.characterization.measured import Measured
from saecache_rl.vocabulary import TOKEN_TYPE_NAMES

#: Reuse rates that the paper reports (SAECache, arXiv 2605.18825).
PAPER = {"system": 0.923, "user": 0.308, "response": 0.278, "tool_output": 0.230, "reasoning": 0.022}


def _ratio(part: float, whole: float) -> float | None:
    return float(part) / float(whole) if whole else None


def _log_normal(found: gaps.LogNormal | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "mu": found.mu,
        "mu_95": list(found.mu_interval),
        "sigma": found.sigma,
        "sigma_95": list(found.sigma_interval),
    }


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
        "figures": captions(measured)._asdict(),
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
                "log_normal_above_zero": _log_normal(gap.above_zero),
                "log_normal_others_as_1_ms": _log_normal(gap.floored),
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
