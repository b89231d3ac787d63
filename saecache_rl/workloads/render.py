"""Segments of text to blocks, compiled: the generators say only how long each part of a prompt is and whose it is."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import types

from saecache_rl.compiled import compiled
from saecache_rl.vocabulary import NUM_TOKEN_TYPES, TokenType
from saecache_rl.workloads.token_blocks import mix

_LONG = types.int64[::1]
_TABLE = types.int64[:, ::1]
_REASONING = int(TokenType.REASONING)
_RESPONSE = int(TokenType.RESPONSE)


class Conversations(NamedTuple):
    """Sessions of one or more kinds, their requests one session after the other (Q requests, S sessions).

    A prompt is the session's head (H segments), then of each earlier request its input, reasoning and response, then
    its own input; the reply is its own reasoning and response.

    head_content: (S, H) int64, equal exactly where the texts are. head_length: (S, H) tokens, 0 for an absent one.
    head_type: (S, H) `TokenType`.
    body_content, body_length: (Q, 3) of each request's input, reasoning and response. input_type: (Q,).
    session: (Q,) which one. first: (Q,) the row of that session's first request.
    keep_from: (Q,) the prompt has no reasoning of requests in rows before this one.
    """

    head_content: npt.NDArray[np.int64]
    head_length: npt.NDArray[np.int64]
    head_type: npt.NDArray[np.int64]
    body_content: npt.NDArray[np.int64]
    body_length: npt.NDArray[np.int64]
    input_type: npt.NDArray[np.int64]
    session: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]
    keep_from: npt.NDArray[np.int64]


@compiled()
def _segment(content, length, kind, at, state, counts, block_size, end, raw, token_type):  # type: ignore[no-untyped-def]
    """Append one segment; `at` is where the next block goes, `state` (tokens in the open block, its hash)."""
    offset = 0
    filled, mixed = state
    while offset < length:
        take = min(length - offset, block_size - filled)
        mixed = mix(mixed ^ mix(np.uint64(content) + np.uint64(0x9E3779B97F4A7C15) * np.uint64(offset)))
        mixed += np.uint64(take)
        if counts[kind] == 0:
            earlier = 0
            for t in range(NUM_TOKEN_TYPES):
                earlier += counts[t] > 0
            counts[kind] = NUM_TOKEN_TYPES - earlier  # less than a token: the type that comes first wins a tie
        counts[kind] += take * 2 * NUM_TOKEN_TYPES
        filled += take
        offset += take
        if filled == block_size:
            if at < end:
                best = 0
                for t in range(NUM_TOKEN_TYPES):
                    if counts[t] > counts[best]:
                        best = t
                raw[at] = np.int64(mix(mixed) >> np.uint64(1))
                token_type[at] = best
            at += 1
            counts[:] = 0
            filled, mixed = 0, np.uint64(0)
    return at, (filled, mixed)


@compiled(
    types.void(
        _TABLE, _TABLE, _TABLE, _TABLE, _TABLE, _LONG, _LONG, _LONG, _LONG, types.int64, _LONG, _LONG, _LONG, _LONG,
        types.uint8[::1],
    )
)  # fmt: skip
def _render(  # type: ignore[no-untyped-def]
    head_content,
    head_length,
    head_type,
    body_content,
    body_length,
    input_type,
    session,
    first,
    keep_from,
    block_size,
    order,
    starts,
    counts,
    raw,
    token_type,
):
    for r in range(len(order)):
        q = order[r]
        at, end = starts[r], starts[r + 1]
        counts[:] = 0
        state = (0, np.uint64(0))
        s = session[q]
        for h in range(head_length.shape[1]):
            at, state = _segment(
                head_content[s, h],
                head_length[s, h],
                head_type[s, h],
                at,
                state,
                counts,
                block_size,
                end,
                raw,
                token_type,
            )
        for t in range(first[q], q + 1):
            for part in range(3):
                length = body_length[t, part]
                kind = input_type[t]
                if part == 1:
                    kind = np.int64(_REASONING)
                    if t < keep_from[q]:
                        length = 0
                elif part == 2:
                    kind = np.int64(_RESPONSE)
                at, state = _segment(
                    body_content[t, part], length, kind, at, state, counts, block_size, end, raw, token_type
                )


def render(
    talks: Conversations, order: npt.NDArray[np.int64], starts: npt.NDArray[np.int64], block_size: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Render requests to the raw ids and the types of their blocks.

    Args:
        talks: the conversations.
        order: (R,) rows of `talks`, in order of arrival.
        starts: (R + 1,) request r's blocks, its prompt's full ones and those that its reply completes, go to
            [starts[r], starts[r + 1]); what is beyond (a last token without KV) is cut off.
        block_size: tokens of a block.

    Returns:
        raw (N,) int64, not negative, equal where the tokens in the block are (up to 63-bit collisions), and
        token_type (N,): the type of most of a block's tokens, the one that comes first in the block on a tie.
    """
    talks = Conversations(*(np.ascontiguousarray(column, np.int64) for column in talks))
    raw = np.empty(starts[-1], np.int64)
    token_type = np.empty(starts[-1], np.uint8)
    counts = np.zeros(NUM_TOKEN_TYPES, np.int64)
    _render(*talks, block_size, order, starts, counts, raw, token_type)
    return raw, token_type
