"""Columns of raw requests to a `Trace`: sorted by time, blocks chained, replies' blocks as the options say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from saecache_rl.vocabulary import TokenType
from saecache_rl.workloads.chain import chain_blocks
from saecache_rl.workloads.trace import Trace, completed_blocks

#: How the blocks of replies get into a trace (`workload.generated`).
GENERATED = ("known", "none", "unique")


class RawRequests(NamedTuple):
    """Requests in order of arrival (R), with the raw ids of their blocks (N).

    session may hold any numbers, -1 where there is none. `raw` and `token_type` hold of each request its
    prompt_tokens // block_size prompt blocks, then `generated` blocks that its reply completes; raw ids are not
    negative.
    """

    arrival: npt.NDArray[np.float64]
    session: npt.NDArray[np.int64]
    turn: npt.NDArray[np.int32]
    prompt_tokens: npt.NDArray[np.int64]
    output_tokens: npt.NDArray[np.int64]
    flags: npt.NDArray[np.uint8]
    phase: npt.NDArray[np.uint8]
    generated: npt.NDArray[np.int64]
    raw: npt.NDArray[np.int64]
    token_type: npt.NDArray[np.uint8]


def ragged(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return (R + 1,) where each of R consecutive runs starts, and the end."""
    starts = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


def dense(names: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Number `names` from 0 by first appearance; negative ones become -1."""
    _, first, which = np.unique(names, return_index=True, return_inverse=True)
    kept = names[first] >= 0
    rank = np.full(len(first), -1, np.int32)
    order = np.flatnonzero(kept)[np.argsort(first[kept])]
    rank[order] = np.arange(len(order), dtype=np.int32)
    return rank[which.reshape(-1)]


def assemble(
    requests: RawRequests,
    *,
    name: str,
    block_size: int,
    generated: str = "known",
    phases: tuple[str, ...] = ("all",),
    notes: Mapping[str, str],
    reply_seconds: npt.NDArray[np.float64] | None = None,
) -> Trace:
    """Chain the blocks and make the trace.

    Args:
        requests: in order of arrival.
        name: of the workload.
        block_size: tokens of a block.
        generated: "known" keeps the replies' blocks that are given; "none" drops them; "unique" gives every reply the
            blocks that it completes, new ones that no prompt will match.
        phases: names of the phases.
        notes: what goes into results, see `Trace.notes`.
        reply_seconds: (R,) see `Trace`.
    """
    prompt = requests.prompt_tokens // block_size
    expected = completed_blocks(requests.prompt_tokens, requests.output_tokens, block_size)
    raw, token_type = requests.raw, requests.token_type
    counts = requests.generated
    if generated != "known":
        wanted = expected if generated == "unique" else np.zeros_like(expected)
        raw, token_type = _replace_generated(requests, prompt, wanted)
        counts = wanted
    starts = ragged(prompt + counts)
    chains = chain_blocks(raw, starts, np.zeros(len(prompt), np.int32))
    prompt_start, generated_start = ragged(prompt), ragged(counts)
    of_prompt = np.arange(len(raw)) - np.repeat(starts[:-1], prompt + counts) < np.repeat(prompt, prompt + counts)
    return Trace(
        block_size=block_size,
        arrival=requests.arrival,
        session=dense(requests.session),
        turn=requests.turn.astype(np.int32),
        prompt_tokens=requests.prompt_tokens.astype(np.int32),
        output_tokens=requests.output_tokens.astype(np.int32),
        salt=np.zeros(len(prompt), np.int32),
        flags=requests.flags,
        phase=requests.phase,
        prompt_start=prompt_start,
        prompt_blocks=chains.blocks[of_prompt],
        generated_start=generated_start,
        generated_blocks=chains.blocks[~of_prompt],
        parent=chains.parent,
        offset=chains.offset,
        token_type=token_type[chains.first],
        names_replies=generated != "none",
        name=name,
        phases=phases,
        notes=dict(notes),
        reply_seconds=reply_seconds,
    )


def _replace_generated(
    requests: RawRequests, prompt: npt.NDArray[np.int64], wanted: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return raw ids and types with `wanted` blocks of its own after each prompt, in place of the generated ones."""
    old, new = ragged(prompt + requests.generated), ragged(prompt + wanted)
    place = np.arange(int(prompt.sum())) - np.repeat(ragged(prompt)[:-1], prompt)
    target = np.repeat(new[:-1], prompt) + place
    source = np.repeat(old[:-1], prompt) + place
    raw = -1 - np.arange(new[-1], dtype=np.int64)  # given ids are not negative, so these are nobody else's
    token_type = np.full(len(raw), TokenType.RESPONSE, np.uint8)
    raw[target], token_type[target] = requests.raw[source], requests.token_type[source]
    return raw, token_type
