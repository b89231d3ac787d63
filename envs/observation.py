"""The observation of a tuning environment: a window's statistics and the parameters as one bounded float32 vector.

Every entry has a name and a meaning:

    layout = ObservationLayout.of(policy.space())
    observation[layout.index["token_hit_ratio"]]
    layout.read(observation)["queue_held.chat"]
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from saecache_rl.cache.params import ParamSpace, PolicyParams
from saecache_rl.engines.stats import NUM_OFFSET_BINS, WindowStats
from saecache_rl.envs.layout import Entry, Layout, Values
from saecache_rl.vocabulary import QUEUE_NAMES, TOKEN_TYPE_NAMES

#: Counts are shown as ln(1 + count) / 32, which reaches 1 at 8e13.
LOG_SCALE = 32.0
#: ln gap seconds are shown divided by this, their deviation by 5: the bounds of mu and sigma.
GAP_SCALE = 12.0
DEVIATION_SCALE = 5.0
GAP_KINDS = ("chat", "agentic")


@dataclass(frozen=True)
class ObservationLayout(Layout):
    """The entries of an observation, in order, and how statistics become one."""

    @staticmethod
    def of(space: ParamSpace) -> ObservationLayout:
        """Return the layout for a policy with these parameters."""
        entries = [
            Entry("token_hit_ratio", 0, 1, "hit tokens / prompt tokens"),
            Entry("block_hit_ratio", 0, 1, "hit blocks / matchable blocks"),
            Entry("log_requests", 0, 1, "ln(1 + requests of the window) / 32"),
            Entry("log_prompt_tokens", 0, 1, "ln(1 + prompt tokens) / 32"),
            Entry("log_evictions", 0, 1, "ln(1 + evicted blocks) / 32"),
            Entry("sampled_share", 0, 1, "choices of a victim from a sample, per evicted block"),
            Entry("log_ttft_ms", 0, 1, "ln(1 + mean milliseconds to the first token) / 32; 0 where the clock has none"),
        ]
        for prefix, meaning in (
            ("queue_held", "share of the capacity that the queue's blocks took, averaged over the window"),
            ("queue_hits", "share of all hit blocks that were in the queue"),
            ("queue_ghost_misses", "missed blocks remembered as evicted from the queue / matchable blocks"),
            ("queue_evictions", "share of all evicted blocks that were in the queue"),
        ):
            entries += [Entry(f"{prefix}.{queue}", 0, 1, meaning) for queue in QUEUE_NAMES]
        for prefix, meaning in (
            ("type_accesses", "share of all matchable blocks that were of the type"),
            ("type_hit_ratio", "the type's hits / its matchable blocks"),
            ("type_ghost_misses", "missed blocks of the type remembered as evicted / its matchable blocks"),
            ("type_evictions", "share of all evicted blocks that were of the type"),
        ):
            entries += [Entry(f"{prefix}.{kind}", 0, 1, meaning) for kind in TOKEN_TYPE_NAMES]
        entries += [
            Entry(f"offset_hit_ratio.{b}", 0, 1, "hits / (hits + ghost misses) of structural blocks by relative offset")
            for b in range(NUM_OFFSET_BINS)
        ]
        for kind in GAP_KINDS:
            entries += [
                Entry(f"log_gap_count.{kind}", 0, 1, "ln(1 + gaps between turns that ended in the window) / 32"),
                Entry(f"gap_mean.{kind}", -1, 1, "mean ln gap seconds / 12; 0 without gaps"),
                Entry(f"gap_deviation.{kind}", 0, 1, "standard deviation of ln gap seconds / 5; 0 without gaps"),
            ]
        entries += [
            Entry(f"param.{p.name}", -1, 1, f"the parameter that was in force, as an action: {p.description}")
            for p in space
        ]
        return ObservationLayout(tuple(entries))

    def encode(self, stats: WindowStats, params: PolicyParams, num_blocks: int) -> npt.NDArray[np.float32]:
        """Return the observation, (n,), of a window served under `params` by a cache of `num_blocks`."""
        matchable, evictions = float(stats.matchable_blocks), float(stats.evictions)
        ttft = stats.ttft_ms_mean if stats.ttft_ms_mean is not None else 0.0
        counts = np.array([stats.requests, stats.prompt_tokens, stats.evictions], np.float64)
        mean = _ratio(stats.gap_log_sum, stats.gap_count)
        variance = _ratio(stats.gap_log_square_sum, stats.gap_count) - mean * mean
        gaps = np.stack(
            [_log(stats.gap_count), mean / GAP_SCALE, np.sqrt(np.maximum(variance, 0.0)) / DEVIATION_SCALE], axis=1
        )
        values = np.concatenate(
            [
                [stats.token_hit_ratio, stats.block_hit_ratio],
                _log(counts),
                _ratio(np.array([stats.sampled_choices]), evictions),
                _log(np.array([ttft])),
                _ratio(stats.queue_held, num_blocks),
                _ratio(stats.queue_hits, stats.hit_blocks),
                _ratio(stats.queue_ghost_misses, matchable),
                _ratio(stats.queue_evictions, evictions),
                _ratio(stats.type_accesses, matchable),
                _ratio(stats.type_hits, stats.type_accesses),
                _ratio(stats.type_ghost_misses, stats.type_accesses),
                _ratio(stats.type_evictions, evictions),
                _ratio(stats.offset_hits, stats.offset_accesses),
                gaps.reshape(-1),
                params.space.to_action(params),
            ]
        )
        bounded: Values = np.clip(values, self.low, self.high)
        return bounded.astype(np.float32)


def _log(counts: npt.ArrayLike) -> Values:
    return np.log1p(np.maximum(np.asarray(counts, np.float64), 0.0)) / LOG_SCALE


def _ratio(part: npt.ArrayLike, whole: npt.ArrayLike) -> Values:
    """Return part / whole, 0 where the whole is 0."""
    top, bottom = np.broadcast_arrays(np.asarray(part, np.float64), np.asarray(whole, np.float64))
    ratio: Values = np.divide(top, bottom, out=np.zeros(top.shape), where=bottom > 0)
    return ratio
