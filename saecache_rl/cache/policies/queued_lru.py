"""LRU whose leaves stand apart by queue and token type, for a choice among the least recent of each."""

from __future__ import annotations

from saecache_rl.cache.layout import ON_RELEASE
from saecache_rl.cache.policies.routing import queue_of_session, route
from saecache_rl.cache.policy import Functions, Policy
from saecache_rl.compiled import kernel
from saecache_rl.vocabulary import NUM_QUEUES, NUM_TOKEN_TYPES


@kernel(ON_RELEASE)
def on_release(cache, chain, size):  # type: ignore[no-untyped-def]
    """LRU's key, and the class of the block's queue and token type."""
    session_queue = queue_of_session(cache)
    release = cache.pool[0].release
    for i in range(size):
        queue = route(cache, chain[i], session_queue)
        block = cache.blocks[chain[i]]
        block.key = release
        block.cls = queue * NUM_TOKEN_TYPES + block.token_type


class QueuedLRU(Policy):
    """Evicts as `LRU` does, to the block, with a class for each of SAECache's queues and each token type.

    Each class is ordered by release, so that its head is its least recent leaf, and the statistics tell queues apart.
    """

    name = "queued_lru"
    uses_predictor = True
    ghosts = 1.0

    def functions(self) -> Functions:
        """The compiled functions."""
        return Functions(on_release=on_release)

    def classes(self) -> tuple[int, ...]:
        """One for each queue and token type, all ordered."""
        return (True,) * (NUM_QUEUES * NUM_TOKEN_TYPES)
