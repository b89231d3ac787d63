"""Makes the arrays of an empty cache, and saves and restores them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from saecache_rl.cache.fingerprints import table_size
from saecache_rl.cache.layout import BLOCK, GHOST, HEAP, POOL, REQUEST, Cache
from saecache_rl.cache.params import PolicyParams
from saecache_rl.cache.policy import Policy
from saecache_rl.errors import InputError
from saecache_rl.vocabulary import NUM_QUEUES, NUM_TOKEN_TYPES

#: What a run changes; the other arrays are the trace's, or made anew for each request.
MUTABLE = (
    "first",
    "children",
    "blocks",
    "free_slots",
    "heaps",
    "arena",
    "ghosts",
    "ghost_table",
    "held",
    "evicted",
    "pool",
    "reals",
    "ints",
)

IntArray = npt.NDArray[np.int32]


def empty_cache(
    policy: Policy,
    num_blocks: int,
    block_size: int,
    *,
    parent: IntArray,
    offset: IntArray,
    token_type: npt.NDArray[np.uint8],
    fingerprint: npt.NDArray[np.int64] | None = None,
    future: IntArray | None = None,
) -> Cache:
    """Make a cache of `num_blocks` slots that holds nothing.

    Args:
        policy: whose classes, ghosts and state are laid out.
        num_blocks: N, at least 1.
        block_size: tokens in a block.
        parent, offset, token_type: (U,) per identity, see `Trace`.
        fingerprint: (U,) what outlives a block where identities are used again; None: the identity itself.
        future: next uses, for an oracle.

    Raises:
        InputError: no slots, or more than 2^31 - 1.
    """
    if not 1 <= num_blocks < 2**31:
        raise InputError(f"num_blocks is {num_blocks}; a cache holds 1 to {2**31 - 1} blocks")
    classes = policy.classes()
    if not 1 <= len(classes) <= 255:
        raise InputError(f"policy {policy.name}: it has {len(classes)} classes of candidates; 1 to 255 are possible")
    blocks = np.zeros(num_blocks, BLOCK)
    for field in ("identity", "next_copy", "position"):
        blocks[field] = -1
    arena = np.zeros(num_blocks * 5 // 4 + 16 * len(classes), np.int32)
    heaps = np.zeros(len(classes), HEAP)
    heaps["ordered"] = classes
    heaps["head"] = -1
    heaps["now"] = -1.0
    ghosts = np.zeros(int(policy.ghosts * num_blocks), GHOST)
    ghosts["fingerprint"] = -1
    pool = np.zeros(1, POOL)
    pool["free"] = num_blocks
    pool["closed"] = policy.closed
    pool["stepwise"] = policy.stepwise
    pool["block_size"] = block_size
    reals, ints = policy.state(num_blocks)
    identities = len(parent)
    return Cache(
        parent=parent,
        offset=offset,
        token_type=token_type,
        fingerprint=np.empty(0, np.int64) if fingerprint is None else fingerprint,
        first=np.full(identities, -1, np.int32),
        children=np.zeros(identities, np.int32),
        blocks=blocks,
        # Popped from the end, so that slots are first used in the order 0, 1, 2, … as in vLLM.
        free_slots=np.arange(num_blocks - 1, -1, -1, dtype=np.int32),
        heaps=heaps,
        arena=arena,
        ghosts=ghosts,
        ghost_table=np.full(table_size(len(ghosts)), -1, np.int32),
        held=np.zeros(NUM_QUEUES, np.int64),
        evicted=np.zeros(NUM_QUEUES + NUM_TOKEN_TYPES, np.int64),
        pool=pool,
        request=np.zeros(1, REQUEST),
        params=policy.encode(policy.space().start()),
        reals=reals,
        ints=ints,
        future=np.empty(0, np.int32) if future is None else future,
    )


def set_params(cache: Cache, policy: Policy, params: PolicyParams) -> None:
    """Put parameters in force; scores that were computed under others are no longer used."""
    if params.space != policy.space():
        raise InputError(f"policy {policy.name}: these parameters belong to another policy: {params.space.names}")
    cache.params[:] = policy.encode(params)
    cache.pool["version"] += 1


def save_cache(cache: Cache) -> dict[str, npt.NDArray[Any]]:
    """Copies of all arrays that a run changes."""
    return {name: getattr(cache, name).copy() for name in MUTABLE}


def load_cache(cache: Cache, saved: dict[str, npt.NDArray[Any]]) -> None:
    """Put saved arrays back into a cache of the same policy, capacity and trace.

    Raises:
        InputError: an array is missing or has another size.
    """
    for name in MUTABLE:
        array = getattr(cache, name)
        if name not in saved or saved[name].shape != array.shape or saved[name].dtype != array.dtype:
            raise InputError(f"the checkpoint's cache.{name} does not fit this policy, capacity and trace")
        array[...] = saved[name]
