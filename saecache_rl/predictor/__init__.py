"""Will this session send another request? Predictors, interchangeable, each causal unless marked as an oracle."""

from __future__ import annotations

from saecache_rl.predictor.base import Predictor
from saecache_rl.predictor.logistic import OnlineLogistic
from saecache_rl.predictor.simple import Always, Never, TrueAnswer, TurnCount

__all__ = ["Always", "Never", "OnlineLogistic", "Predictor", "TrueAnswer", "TurnCount"]
