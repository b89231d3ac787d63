"""Learners and fixed policies: what moves a cache policy's parameters from one window of requests to the next."""

from __future__ import annotations

from saecache_rl.agents.base import Agent, Module, State
from saecache_rl.agents.composite import Composite
from saecache_rl.agents.fixed import Fixed
from saecache_rl.agents.frozen import Frozen
from saecache_rl.agents.gaps import LogNormalGaps
from saecache_rl.agents.meta import Bandit, ParameterBandit
from saecache_rl.agents.position import PositionalDecay
from saecache_rl.agents.queue_weights import QueueWeights
from saecache_rl.agents.token_weights import TokenWeights

__all__ = [
    "Agent",
    "Bandit",
    "Composite",
    "Fixed",
    "Frozen",
    "LogNormalGaps",
    "Module",
    "ParameterBandit",
    "PositionalDecay",
    "QueueWeights",
    "State",
    "TokenWeights",
]
