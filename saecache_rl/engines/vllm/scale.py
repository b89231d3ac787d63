"""A trace as a live engine replays it: one block of the trace becomes one block of the engine, whatever the two sizes.

k full blocks and a remainder become k engine blocks and a remainder scaled by the factor, of at least 1 token, so that
every request has as many blocks, full, matchable and generated, as in the trace, and one simulator serves both. A reply
whose blocks the trace does not name is replayed as its first token, so that no block is taken which the trace lacks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from saecache_rl.errors import InputError
from saecache_rl.workloads.trace import COLUMNS, Trace

#: Columns that are not of a request each.
_OTHERS = {"prompt_start", "prompt_blocks", "generated_start", "generated_blocks", "parent", "offset", "token_type"}
#: Names of what `scaled` notes in a trace.
FACTOR, DROPPED, LONGEST = "live_tokens_per_trace_token", "live_dropped_requests", "live_max_model_len"


def _remainder(tokens: npt.NDArray[np.int64], size: int, to: int) -> npt.NDArray[np.int64]:
    """Tokens beyond the last full block of `size`, scaled to one of `to`; 0 stays 0."""
    left = tokens % size
    return np.where(left == 0, 0, np.clip(np.rint(left * (to / size)), 1, to - 1)).astype(np.int64)


def scaled(trace: Trace, block_size: int, longest: int) -> Trace:
    """The trace in blocks of `block_size` tokens, without the requests of more than `longest` tokens.

    Its notes state the factor and the number of requests dropped. A trace that is scaled already stays as it is.

    Raises:
        InputError: no request is left.
    """
    size = trace.block_size
    prompt, output = trace.prompt_tokens.astype(np.int64), np.maximum(trace.output_tokens.astype(np.int64), 1)
    prompt_tokens = prompt // size * block_size + _remainder(prompt, size, block_size)
    total = prompt + output - 1  # the last sampled token has no KV
    replayed = total // size * block_size + _remainder(total, size, block_size) + 1 - prompt_tokens
    output_tokens = np.where(trace.reply_named, replayed, 1)
    fits = prompt_tokens + output_tokens <= longest
    dropped = int((~fits).sum())
    if not fits.any():
        raise InputError(
            f"{trace.name}: no request fits in the engine's {longest} tokens (the shortest has "
            f"{int((prompt_tokens + output_tokens).min())}); raise engine.max_model_len or cut prompts with "
            "workload.max_prompt_tokens"
        )
    notes = dict(trace.notes)
    notes[FACTOR] = notes.get(FACTOR, f"{block_size / size:g}")
    notes[DROPPED] = str(int(notes.get(DROPPED, "0")) + dropped)
    notes[LONGEST] = str(longest)
    columns: dict[str, Any] = {name: getattr(trace, name)[fits] for name in COLUMNS if name not in _OTHERS}
    if trace.reply_seconds is not None:
        columns["reply_seconds"] = trace.reply_seconds[fits]
    columns["prompt_tokens"] = prompt_tokens[fits].astype(np.int32)
    columns["output_tokens"] = output_tokens[fits].astype(np.int32)
    for kind in ("prompt", "generated"):
        starts, blocks = getattr(trace, f"{kind}_start"), getattr(trace, f"{kind}_blocks")
        lengths = np.diff(starts)
        columns[f"{kind}_start"] = np.concatenate([[0], np.cumsum(lengths[fits])])
        columns[f"{kind}_blocks"] = blocks[np.repeat(fits, lengths)]
    columns |= _identities_in_use(trace, columns)
    return replace(trace, block_size=block_size, notes=notes, **columns)


def _identities_in_use(trace: Trace, columns: dict[str, Any]) -> dict[str, Any]:
    """Number the identities anew, from 0, in the order that they have; those of no request left over are gone."""
    used = np.zeros(trace.num_identities, np.bool_)
    used[columns["prompt_blocks"]] = True
    used[columns["generated_blocks"]] = True
    number = np.cumsum(used, dtype=np.int32) - 1
    parent = trace.parent[used]
    return {
        "prompt_blocks": number[columns["prompt_blocks"]].astype(np.int32),
        "generated_blocks": number[columns["generated_blocks"]].astype(np.int32),
        "parent": np.where(parent < 0, -1, number[np.maximum(parent, 0)]).astype(np.int32),
        "offset": trace.offset[used],
        "token_type": trace.token_type[used],
    }


def dropped_requests(trace: Trace) -> int:
    """How many requests of the workload `scaled` left out."""
    return int(trace.notes.get(DROPPED, "0"))
