"""The weights of the queues, from the hits that each block of a queue has earned."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from saecache_rl.agents.base import Module, check_option
from saecache_rl.cache.params import PolicyParams
from saecache_rl.engines.stats import WindowStats
from saecache_rl.vocabulary import QUEUE_NAMES, Queue

#: The queues that have a weight.
WEIGHTED = (Queue.STRUCTURAL, Queue.CHAT, Queue.AGENTIC)
#: Far above every weight's bound; keeps powers and their squares finite at any temperature.
_CAP = 1e6


class QueueWeights(Module):
    """Temperature-scaled efficiency of each queue (UniCache, SIGMETRICS 2026; bounds of SAECache, arXiv 2605.18825).

    E_q = hit tokens of the queue / blocks it held, averaged over the window; 0 where it held nothing. The block size is
    a common factor of all E and cancels. The value (E_q / mean E)^(1 / T) is clipped to the mean +- `deviations`
    standard deviations of the queue's own last `memory` values (as they were before clipping, so that a constant past
    can't pin the future), then blended by an exponential moving average. No hit in any queue: nothing changes.
    """

    state_names = ("_history", "_seen")
    hyperparameters = ("rate_factor", "temperature")

    def __init__(self, temperature: float = 0.2, rate: float = 0.1, memory: int = 50, deviations: float = 2.0) -> None:
        """Set T, the average's rate a window, and the clipping."""
        self._start_temperature = check_option("queue_weights", "temperature", temperature, 0.0, 1e6)
        self.rate = check_option("queue_weights", "rate", rate, 0.0, 1.0)
        self.memory = int(check_option("queue_weights", "memory", memory, 1.0, 1e6))
        self.deviations = check_option("queue_weights", "deviations", deviations, 0.0, 1e6)
        self.reset(0)

    @property
    def owns(self) -> tuple[str, ...]:
        """One weight a queue, evict-first apart."""
        return tuple(f"alpha.{QUEUE_NAMES[queue]}" for queue in WEIGHTED)

    def reset(self, seed: int) -> None:
        """Forget the past values."""
        self.rate_factor = 1.0
        self.temperature = self._start_temperature
        self._history = np.zeros((self.memory, len(WEIGHTED)), np.float64)
        self._seen = 0

    def update(self, stats: WindowStats, params: PolicyParams, reward: float) -> dict[str, float]:
        """Move every weight towards the window's value."""
        queues = np.array(WEIGHTED)
        value = self.value(stats.queue_hits[queues], stats.queue_held[queues])
        if value is None:
            return {}
        past = self._history[: min(self._seen, self.memory)].copy()
        self._history[self._seen % self.memory] = value
        clipped = value
        if self._seen >= 2:
            mean, reach = past.mean(axis=0), self.deviations * past.std(axis=0)
            clipped = np.clip(value, mean - reach, mean + reach)
        self._seen += 1
        rate = min(1.0, self.rate * self.rate_factor)
        return {
            name: (1.0 - rate) * params[name] + rate * float(target)
            for name, target in zip(self.owns, clipped, strict=True)
        }

    def value(self, hits: npt.NDArray[np.int64], held: npt.NDArray[np.float64]) -> npt.NDArray[np.float64] | None:
        """Return (3,) (E_q / mean E)^(1 / T), at most 1e6 each, or None where every E is 0."""
        known = (hits > 0) & (held > 0.0) & np.isfinite(held)
        if not known.any():
            return None
        # In logarithms, relative to the largest, so that no quotient and no power overflows.
        log_efficiency = np.log(np.where(known, hits, 1)) - np.log(np.where(known, held, 1.0))
        log_efficiency -= log_efficiency[known].max()
        mean = float(np.where(known, np.exp(np.minimum(log_efficiency, 0.0)), 0.0).mean())
        exponent = (log_efficiency - np.log(mean)) / self.temperature
        return np.where(known, np.exp(np.minimum(exponent, np.log(_CAP))), 0.0)
