"""Prefix-cache eviction for LLM serving as an online tuning problem. Importing it registers the Gymnasium environments.

Light on purpose: nothing here compiles, or imports what only a run needs.
"""

from __future__ import annotations

from gymnasium.envs.registration import register, registry

#: Id to entry point of every environment.
ENVIRONMENTS = {
    "SAECache/PrefixCacheTuning-v0": "saecache_rl.envs.tuning:PrefixCacheTuningEnv",
    "SAECache/PrefixCacheEviction-v0": "saecache_rl.envs.eviction:PrefixCacheEvictionEnv",
}

for _id, _entry_point in ENVIRONMENTS.items():
    if _id not in registry:
        register(id=_id, entry_point=_entry_point)
