"""What a trained predictor sees of a request: figures that a server knows when it is over, and hashed words."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from saecache_rl.errors import InputError
from saecache_rl.workloads.sessions import Sessions
from saecache_rl.workloads.trace import ENDED_FOR_TOOL, HAS_TOOLS, Trace

Reals = npt.NDArray[np.float64]

#: The figures, in order.
FIGURES = (
    "constant",
    "first_turn",
    "ln_turn",
    "ln_prompt_tokens",
    "ln_output_tokens",
    "has_tools",
    "ended_for_tool",
    "agentic",
    "ln_past_gap",
)
_LOG_SCALE = 0.1  # brings logarithms of tokens and seconds near [0, 1]


def figures(trace: Trace, sessions: Sessions) -> Reals:
    """Return (R, F) the figures of each request."""
    return figures_of(
        turn=sessions.turn,
        prompt_tokens=trace.prompt_tokens,
        output_tokens=trace.output_tokens,
        has_tools=(trace.flags & HAS_TOOLS) != 0,
        ended_for_tool=(trace.flags & ENDED_FOR_TOOL) != 0,
        agentic=sessions.agentic != 0,
        gap_seconds=sessions.gap_seconds,
    )


def figures_of(
    *,
    turn: npt.ArrayLike,
    prompt_tokens: npt.ArrayLike,
    output_tokens: npt.ArrayLike,
    has_tools: npt.ArrayLike,
    ended_for_tool: npt.ArrayLike,
    agentic: npt.ArrayLike,
    gap_seconds: npt.ArrayLike,
) -> Reals:
    """Return (R, F) figures of requests, given as (R,) columns; gap_seconds is nan at turn 0."""
    turns = np.asarray(turn)
    gap = np.nan_to_num(np.asarray(gap_seconds, np.float64), nan=0.0)
    columns = [
        np.ones(len(turns)),
        turns == 0,
        np.log1p(turns) * _LOG_SCALE,
        np.log1p(prompt_tokens) * _LOG_SCALE,
        np.log1p(output_tokens) * _LOG_SCALE,
        has_tools,
        ended_for_tool,
        agentic,
        np.log1p(np.maximum(gap, 0.0)) * _LOG_SCALE,
    ]
    return np.stack([np.asarray(c, np.float64) for c in columns], axis=1)


class WordColumns:
    """The words of each request as columns of a sparse matrix; each request's have Euclidean length 1."""

    def __init__(self, trace: Trace, buckets: int) -> None:
        """Take the words of a trace.

        Raises:
            InputError: it has none.
        """
        if trace.words is None or trace.words_start is None:
            raise InputError(
                f"{trace.name}: the workload has no texts to learn words from; train without: text_buckets=0"
            )
        self.request = np.repeat(np.arange(trace.num_requests), np.diff(trace.words_start))
        self.column = (trace.words % np.uint32(buckets)).astype(np.int64)
        counts = np.maximum(np.diff(trace.words_start), 1)
        self.value = 1.0 / np.sqrt(counts[self.request])
        self.requests, self.buckets = trace.num_requests, buckets

    def times(self, weights: Reals) -> Reals:
        """Return (R,) the words' part of each request's score."""
        return np.asarray(
            np.bincount(self.request, self.value * weights[self.column], minlength=self.requests), np.float64
        )

    def transposed_times(self, errors: Reals) -> Reals:
        """Return (buckets,) the gradient of (R,) errors."""
        return np.asarray(
            np.bincount(self.column, self.value * errors[self.request], minlength=self.buckets), np.float64
        )
