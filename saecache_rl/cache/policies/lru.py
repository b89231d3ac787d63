"""Least recently used: vLLM's own order."""

from __future__ import annotations

from saecache_rl.cache.policy import Policy


class LRU(Policy):
    """Evicts the block that was released the longest ago, of one request the deepest first.

    The pool's defaults are this policy: one class, ordered by the number of the latest release.
    """

    name = "lru"
