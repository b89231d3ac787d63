"""Gymnasium environments over the cache engines. `import saecache_rl` registers them by id."""

from __future__ import annotations

from saecache_rl.envs.observation import Entry, ObservationLayout
from saecache_rl.envs.tuning import PrefixCacheTuningEnv

__all__ = ["Entry", "ObservationLayout", "PrefixCacheTuningEnv"]
