"""The kinds of session that the generators mix: chat, templated and agentic, each drawn as arrays.

The numbers are options; conf/workload/kind/*.yaml holds their values, with the statistics that they come from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from saecache_rl.vocabulary import TokenType
from saecache_rl.workloads.options import FRACTION, Bounds, option
from saecache_rl.workloads.trace import ENDED_FOR_TOOL, HAS_TOOLS

Longs = npt.NDArray[np.int64]

# Bounds that keep what is drawn finite and in memory; every realistic value is well inside.
_TEXTS = Bounds(1, 1_000_000, whole=True)
_ZIPF = Bounds(0, 10)
_TOKENS = Bounds(1, 1_000_000)
_SIGMA = Bounds(0, 10)
_MU = Bounds(-20, 20)
_MEAN = Bounds(1, 100)
#: Above any prompt; keeps a wild draw of a heavy tail within int64 arithmetic.
_LONGEST = 10_000_000


class Draw(NamedTuple):
    """S sessions of one kind with Q requests, one session after the other.

    start: (S,) seconds. turns: (S,) requests of each, at least one. gap: (Q,) seconds since the session's previous
    request, 0 for its first. head: (S, H) which text of the kind's pool stands there. head_length: (S, H) tokens.
    head_type: (H,). body_length: (Q, 3) tokens of input, reasoning and response. input_type: (Q,). flags: (Q,).
    user_turn: (Q,) the row of the latest request, up to this one, that a user (not a tool) began.
    """

    start: npt.NDArray[np.float64]
    turns: Longs
    gap: npt.NDArray[np.float64]
    head: Longs
    head_length: Longs
    head_type: Longs
    body_length: Longs
    input_type: Longs
    flags: npt.NDArray[np.uint8]
    user_turn: Longs


class Kind(Protocol):
    """A kind of session."""

    def draw(self, pool: np.random.Generator, random: np.random.Generator, starts: npt.NDArray[np.float64]) -> Draw:
        """Draw sessions.

        Args:
            pool: a fresh generator for what all sessions share (lengths of templates): the same at every call.
            random: for the sessions themselves.
            starts: (n,) seconds at which one arrives, or a burst of them.
        """


def _tokens(random: np.random.Generator, median: float, sigma: float, size: int | tuple[int, ...]) -> Longs:
    """Draw log-normal lengths of at least one token."""
    drawn = np.rint(np.exp(np.log(median) + sigma * random.standard_normal(size)))
    lengths: Longs = np.clip(drawn, 1, _LONGEST).astype(np.int64)
    return lengths


def _popular(random: np.random.Generator, texts: int, zipf: float, size: int) -> Longs:
    """Draw which of `texts` is used: the k-th most popular with a probability proportional to k ** -zipf."""
    weight = np.arange(1, texts + 1, dtype=np.float64) ** -zipf
    chosen = np.searchsorted(np.cumsum(weight) / weight.sum(), random.random(size))
    drawn: Longs = np.minimum(chosen, texts - 1).astype(np.int64)
    return drawn


def _geometric(random: np.random.Generator, mean: float, size: int) -> Longs:
    """Draw 1, 2, … with the mean `mean`."""
    return np.minimum(random.geometric(1 / mean, size), 10_000).astype(np.int64)


def first_rows(turns: Longs) -> Longs:
    """Return (S,) the row of each session's first request."""
    return np.cumsum(turns) - turns


@dataclass(frozen=True)
class Chat:
    """People who talk with a model: shared system prompts, think time, each reply part of the next prompt."""

    system_prompts: int = option(_TEXTS)
    system_prompt_zipf: float = option(_ZIPF)
    system_prompt_share: float = option(FRACTION)
    system_prompt_tokens_median: float = option(_TOKENS)
    system_prompt_tokens_sigma: float = option(_SIGMA)
    multi_turn_share: float = option(FRACTION)
    further_turns_mean: float = option(_MEAN)
    user_tokens_median: float = option(_TOKENS)
    user_tokens_sigma: float = option(_SIGMA)
    response_tokens_median: float = option(_TOKENS)
    response_tokens_sigma: float = option(_SIGMA)
    gap_mu: float = option(_MU)
    gap_sigma: float = option(_SIGMA)

    def draw(self, pool: np.random.Generator, random: np.random.Generator, starts: npt.NDArray[np.float64]) -> Draw:
        """See `Kind.draw`."""
        sessions = len(starts)
        lengths = _tokens(pool, self.system_prompt_tokens_median, self.system_prompt_tokens_sigma, self.system_prompts)
        head = _popular(random, self.system_prompts, self.system_prompt_zipf, sessions)
        present = random.random(sessions) < self.system_prompt_share
        more = random.random(sessions) < self.multi_turn_share
        turns = 1 + np.where(more, _geometric(random, self.further_turns_mean, sessions), 0)
        requests = int(turns.sum())
        body = np.zeros((requests, 3), np.int64)
        body[:, 0] = _tokens(random, self.user_tokens_median, self.user_tokens_sigma, requests)
        body[:, 2] = _tokens(random, self.response_tokens_median, self.response_tokens_sigma, requests)
        gap = np.exp(self.gap_mu + self.gap_sigma * random.standard_normal(requests))
        gap[first_rows(turns)] = 0
        return Draw(
            start=starts,
            turns=turns,
            gap=gap,
            head=head[:, None],
            head_length=(lengths[head] * present)[:, None],
            head_type=np.array([TokenType.SYSTEM], np.int64),
            body_length=body,
            input_type=np.full(requests, TokenType.USER, np.int64),
            flags=np.zeros(requests, np.uint8),
            user_turn=np.arange(requests),
        )


@dataclass(frozen=True)
class Templated:
    """Programs that fill a template, one request each: system prompt, worked examples, then a part of its own."""

    templates: int = option(_TEXTS)
    template_zipf: float = option(_ZIPF)
    template_tokens_median: float = option(_TOKENS)
    template_tokens_sigma: float = option(_SIGMA)
    examples: int = option(Bounds(0, 64, whole=True))
    examples_share: float = option(FRACTION)
    user_tokens_median: float = option(_TOKENS)
    user_tokens_sigma: float = option(_SIGMA)
    response_tokens_median: float = option(_TOKENS)
    response_tokens_sigma: float = option(_SIGMA)
    burst_requests_mean: float = option(_MEAN)
    burst_spacing_seconds: float = option(Bounds(0, 1_000_000))

    def draw(self, pool: np.random.Generator, random: np.random.Generator, starts: npt.NDArray[np.float64]) -> Draw:
        """See `Kind.draw`: each start is a burst of requests with one template."""
        lengths = _tokens(pool, self.template_tokens_median, self.template_tokens_sigma, self.templates)
        size = _geometric(random, self.burst_requests_mean, len(starts))
        sessions = int(size.sum())
        spacing = random.exponential(1.0, sessions) * self.burst_spacing_seconds
        first = first_rows(size)
        spacing[first] = 0
        waited = np.cumsum(spacing)
        start = np.repeat(starts, size) + waited - np.repeat(waited[first], size)
        template = np.repeat(_popular(random, self.templates, self.template_zipf, len(starts)), size)
        share = self.examples_share if self.examples else 0.0
        parts = 2 * self.examples
        head_length = np.empty((sessions, 1 + parts), np.int64)
        # An example is two thirds question and one third answer; all examples of a template are equally long.
        question = np.rint(lengths * share / max(self.examples, 1) * 2 / 3).astype(np.int64)
        answer = np.rint(lengths * share / max(self.examples, 1) / 3).astype(np.int64)
        head_length[:, 0] = np.maximum(lengths - self.examples * (question + answer), 1)[template]
        head_length[:, 1::2] = question[template][:, None]
        head_length[:, 2::2] = answer[template][:, None]
        body = np.zeros((sessions, 3), np.int64)
        body[:, 0] = _tokens(random, self.user_tokens_median, self.user_tokens_sigma, sessions)
        body[:, 2] = _tokens(random, self.response_tokens_median, self.response_tokens_sigma, sessions)
        return Draw(
            start=start,
            turns=np.ones(sessions, np.int64),
            gap=np.zeros(sessions),
            head=template[:, None] * (1 + parts) + np.arange(1 + parts),
            head_length=head_length,
            head_type=np.array([TokenType.SYSTEM, *[TokenType.USER, TokenType.RESPONSE] * self.examples], np.int64),
            body_length=body,
            input_type=np.full(sessions, TokenType.USER, np.int64),
            flags=np.zeros(sessions, np.uint8),
            user_turn=np.arange(sessions),
        )


@dataclass(frozen=True)
class Agentic:
    """Agents in tool loops: seconds between tool turns, a user who is back in minutes or never, a growing context."""

    applications: int = option(_TEXTS)
    application_zipf: float = option(_ZIPF)
    tool_definition_tokens_median: float = option(_TOKENS)
    tool_definition_tokens_sigma: float = option(_SIGMA)
    system_prompt_tokens_median: float = option(_TOKENS)
    system_prompt_tokens_sigma: float = option(_SIGMA)
    user_turns_mean: float = option(_MEAN)
    requests_per_user_turn_mean: float = option(_MEAN)
    user_tokens_median: float = option(_TOKENS)
    user_tokens_sigma: float = option(_SIGMA)
    tool_output_tokens_median: float = option(_TOKENS)
    tool_output_tokens_sigma: float = option(_SIGMA)
    tool_output_tokens_max: int = option(Bounds(1, 1_000_000, whole=True))
    output_tokens_median: float = option(_TOKENS)
    output_tokens_sigma: float = option(_SIGMA)
    reasoning_probability: float = option(FRACTION)
    reasoning_share: float = option(FRACTION)
    reasoning_kept: float = option(Bounds(0, 1, whole=True))
    tool_gap_mu: float = option(_MU)
    tool_gap_sigma: float = option(_SIGMA)
    user_gap_mu: float = option(_MU)
    user_gap_sigma: float = option(_SIGMA)

    def draw(self, pool: np.random.Generator, random: np.random.Generator, starts: npt.NDArray[np.float64]) -> Draw:
        """See `Kind.draw`."""
        sessions = len(starts)
        pools = (
            _tokens(pool, self.tool_definition_tokens_median, self.tool_definition_tokens_sigma, self.applications),
            _tokens(pool, self.system_prompt_tokens_median, self.system_prompt_tokens_sigma, self.applications),
        )
        application = _popular(random, self.applications, self.application_zipf, sessions)
        user_turns = _geometric(random, self.user_turns_mean, sessions)
        loops = _geometric(random, self.requests_per_user_turn_mean, int(user_turns.sum()))
        turns = np.add.reduceat(loops, first_rows(user_turns))
        requests = int(loops.sum())
        by_user = np.zeros(requests, bool)
        by_user[first_rows(loops)] = True
        for_tool = np.ones(requests, bool)
        for_tool[first_rows(loops) + loops - 1] = False

        user = _tokens(random, self.user_tokens_median, self.user_tokens_sigma, requests)
        tool = _tokens(random, self.tool_output_tokens_median, self.tool_output_tokens_sigma, requests)
        output = _tokens(random, self.output_tokens_median, self.output_tokens_sigma, requests)
        thinks = random.random(requests) < self.reasoning_probability
        reasoning = np.where(thinks, np.rint(output * self.reasoning_share).astype(np.int64), 0)
        reasoning = np.minimum(reasoning, output - 1)  # a reply always says something
        gap = np.where(
            by_user,
            np.exp(self.user_gap_mu + self.user_gap_sigma * random.standard_normal(requests)),
            np.exp(self.tool_gap_mu + self.tool_gap_sigma * random.standard_normal(requests)),
        )
        gap[first_rows(turns)] = 0
        latest_user = np.maximum.accumulate(np.where(by_user, np.arange(requests), 0))
        return Draw(
            start=starts,
            turns=turns,
            gap=gap,
            head=application[:, None] * 2 + np.arange(2),
            head_length=np.stack([p[application] for p in pools], axis=1),
            head_type=np.array([TokenType.TOOL_DEFINITION, TokenType.SYSTEM], np.int64),
            body_length=np.stack(
                [np.where(by_user, user, np.minimum(tool, self.tool_output_tokens_max)), reasoning, output - reasoning],
                axis=1,
            ),
            input_type=np.where(by_user, int(TokenType.USER), int(TokenType.TOOL_OUTPUT)),
            flags=np.where(for_tool, HAS_TOOLS | ENDED_FOR_TOOL, HAS_TOOLS).astype(np.uint8),
            user_turn=np.zeros(requests, np.int64) if self.reasoning_kept else latest_user,
        )


KINDS: dict[str, type[Chat] | type[Templated] | type[Agentic]] = {
    "chat": Chat,
    "templated": Templated,
    "agentic": Agentic,
}
