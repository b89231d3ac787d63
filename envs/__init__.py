"""Gymnasium environments over the cache engines. `import saecache_rl` registers them by id."""

from __future__ import annotations

from saecache_rl.envs.candidates import EvictionLayout
from saecache_rl.envs.eviction import PrefixCacheEvictionEnv
from saecache_rl.envs.layout import Entry, Layout
from saecache_rl.envs.observation import ObservationLayout
from saecache_rl.envs.tuning import PrefixCacheTuningEnv

__all__ = [
    "Entry",
    "EvictionLayout",
    "Layout",
    "ObservationLayout",
    "PrefixCacheEvictionEnv",
    "PrefixCacheTuningEnv",
]
