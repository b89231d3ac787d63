"""The live engine that its options ask for: in this process, or in one of its own."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from saecache_rl.cache.policy import Policy
from saecache_rl.engines.vllm.live import LiveEngine
from saecache_rl.engines.vllm.live_settings import LiveSettings
from saecache_rl.workloads.sessions import Sessions
from saecache_rl.workloads.trace import Trace


def live_engine(
    trace: Trace,
    policy: Policy | None,
    num_blocks: int,
    sessions: Sessions | None = None,
    continues: npt.NDArray[np.float64] | None = None,
    *,
    settings: LiveSettings,
) -> LiveEngine:
    """Make an engine; see `LiveEngine`."""
    if settings.process == "own":
        from saecache_rl.engines.vllm.remote import RemoteEngine

        return RemoteEngine(trace, policy, num_blocks, sessions, continues, settings)
    return LiveEngine(trace, policy, num_blocks, sessions, continues, settings)
