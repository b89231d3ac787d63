"""The exact offline optimum: evict the block whose next use lies furthest ahead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from numba import types

from saecache_rl.cache.heap import rekey
from saecache_rl.cache.layout import LOOSE, ON_ACCESS, ON_RELEASE
from saecache_rl.cache.policy import Functions, Policy
from saecache_rl.compiled import kernel

if TYPE_CHECKING:
    from saecache_rl.workloads.trace import Trace

NEVER = 2**31 - 1
#: Used again, but only after a request has inserted it anew, so that this copy is never used.
REPLACED = 2**31 - 2


@kernel(
    types.void(
        types.int32[::1],
        types.int64[::1],
        types.int32[::1],
        types.int64[::1],
        types.int32[::1],
        types.int64,
        types.int32[::1],
        types.int32[::1],
    )
)
def _next_uses(  # type: ignore[no-untyped-def]
    prompt_tokens, prompt_start, prompt_blocks, generated_start, generated_blocks, block_size, ahead, uses
):
    """Fill `uses` from the last request to the first; `ahead` is each identity's next use so far."""
    prompts = len(prompt_blocks)
    for r in range(len(prompt_tokens) - 1, -1, -1):
        for at in range(generated_start[r], generated_start[r + 1]):
            identity = generated_blocks[at]
            uses[prompts + at] = ahead[identity]
            if ahead[identity] != NEVER:
                ahead[identity] = REPLACED
        matchable = prompt_start[r] + (prompt_tokens[r] - 1) // block_size
        for at in range(prompt_start[r], prompt_start[r + 1]):
            identity = prompt_blocks[at]
            uses[at] = ahead[identity]
            if at < matchable:
                ahead[identity] = r
            elif ahead[identity] != NEVER:
                ahead[identity] = REPLACED


def next_uses(trace: Trace) -> npt.NDArray[np.int32]:
    """Next use of every block of every request: the prompts' blocks in their order, then the generated ones.

    A next use is the number of the next request that has the block among its matchable blocks; NEVER if there is none;
    REPLACED if a request inserts the block anew before that, as its unmatchable last full block or as generated.
    """
    uses = np.empty(len(trace.prompt_blocks) + len(trace.generated_blocks), np.int32)
    ahead = np.full(trace.num_identities, NEVER, np.int32)
    _next_uses(
        trace.prompt_tokens,
        trace.prompt_start,
        trace.prompt_blocks,
        trace.generated_start,
        trace.generated_blocks,
        trace.block_size,
        ahead,
        uses,
    )
    return uses


def uses_ahead(
    trace: Trace, uses: npt.NDArray[np.int32], blocks: npt.NDArray[np.void], request: int
) -> npt.NDArray[np.int64]:
    """Next uses of some unreferenced blocks while a request is served: what a teacher knows and a policy must not.

    Args:
        trace: whose requests have been served one by one.
        uses: `next_uses` of the trace.
        blocks: (n,) BLOCK, records of the blocks.
        request: number of the request that is being served, matched already.

    Returns:
        (n,) numbers of requests; NEVER where there is none, or a request takes another copy or inserts the block anew.
    """
    last = blocks["access"] - 1  # each request is one access
    offset = blocks["offset"].astype(np.int64)
    full = trace.prompt_start[last + 1] - trace.prompt_start[last]
    generated = len(trace.prompt_blocks) + trace.generated_start[last] + offset - full
    ahead: npt.NDArray[np.int64] = uses[np.where(offset < full, trace.prompt_start[last] + offset, generated)].astype(
        np.int64
    )
    ahead[(ahead <= request) | (ahead == REPLACED)] = NEVER
    return ahead


@kernel(ON_ACCESS)
def on_access(cache, chain, hits, missed):  # type: ignore[no-untyped-def]
    """Matching took the oldest copy; the others will never be used."""
    for i in range(hits):
        spare = cache.blocks[chain[i]].next_copy
        while spare >= 0:
            rekey(cache, spare, -float(NEVER))
            spare = cache.blocks[spare].next_copy


@kernel(ON_RELEASE)
def on_release(cache, chain, size):  # type: ignore[no-untyped-def]
    """Key: minus the next use. A replaced block may go even while its children, used later, stay."""
    request = cache.request[0]
    prompts = cache.ints[0]
    for i in range(size):
        if i < request.prompt_blocks:
            use = cache.future[request.prompt_start + i]
        else:
            use = cache.future[prompts + request.generated_start + i - request.prompt_blocks]
        block = cache.blocks[chain[i]]
        block.flags &= 255 - LOOSE
        if use == REPLACED:
            block.flags |= LOOSE
            use = NEVER
        block.key = -use


class Optimum(Policy):
    """Belady's rule on blocks, deepest first on ties: exactly optimal in hit blocks for a fixed order of arrival.

    A block's ancestors are used whenever it is, so their next uses are no later and the rule keeps whole prefixes by
    itself; the one exception is an ancestor that will be inserted anew before its next use, which may go first
    (LOOSE). The tests compare it with exhaustive search. Sees the future: an oracle, for reference only.
    """

    name = "optimum"
    oracle = True

    def functions(self) -> Functions:
        """The compiled functions."""
        return Functions(on_access=on_access, on_release=on_release)

    def state(self, num_blocks: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """One number, which the engine fills in with the future: how many prompt blocks the trace has."""
        return np.zeros(0, np.float64), np.zeros(1, np.int64)

    def foresee(self, trace: Trace) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """The trace's next uses, and the state that goes with them."""
        return next_uses(trace), np.array([len(trace.prompt_blocks)], np.int64)
