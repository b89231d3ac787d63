"""What more information would be worth: the policy with one more feature that reads the future. For reference only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from saecache_rl.cache.policies.hazard.policy import Hazard, choice
from saecache_rl.cache.policies.optimum import NEVER, REPLACED, next_uses
from saecache_rl.errors import InputError

if TYPE_CHECKING:
    from saecache_rl.workloads.trace import Trace

SIGHTS = ("again", "gap", "again_and_gap")
_TOP = 63  # the largest value of the feature


class SeeingHazard(Hazard):
    """`Hazard` told of each block, at release, something of its next use.

    again: whether there is one. gap: the seconds to it, within a factor e, and for a block without one the gap of
    another block, so that its end stays hidden. again_and_gap: both, the gap within a factor 1.6.
    """

    name = "hazard_oracle"
    oracle = True
    foresight = True

    def __init__(self, sees: str = "again", wrong: float = 0.0, seed: int = 0) -> None:
        """Choose what it sees, and which part of the answers to `again` are turned round, drawn from `seed`.

        Raises:
            InputError: another name, or a share outside [0, 1].
        """
        super().__init__()
        self.sees = choice("sees", sees, dict.fromkeys(SIGHTS))
        if not 0.0 <= wrong <= 1.0:
            raise InputError(f"policy hazard_oracle: wrong is {wrong}; a share from 0 to 1")
        self.wrong = wrong
        self.seed = seed

    def foresee(self, trace: Trace) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Value of the feature for every block of every request, prompts' first; last, how many blocks prompts have."""
        uses = next_uses(trace)
        request = np.concatenate(
            [
                np.repeat(np.arange(trace.num_requests), np.diff(trace.prompt_start)),
                np.repeat(np.arange(trace.num_requests), np.diff(trace.generated_start)),
            ]
        )
        again = (uses != NEVER) & (uses != REPLACED)
        gap = np.zeros(len(uses))
        gap[again] = trace.arrival[uses[again]] - trace.arrival[request[again]]
        generator = np.random.default_rng(self.seed)
        if self.sees == "gap" and again.any():
            gap[~again] = generator.choice(gap[again], int((~again).sum()))
        log = np.log(np.maximum(gap, 0.05)) - np.log(0.05)
        if self.sees == "again":
            told = again ^ (generator.random(len(again)) < self.wrong)
            seen = 1 + told.astype(np.int32)
        elif self.sees == "gap":
            seen = np.minimum(1 + np.floor(log), _TOP)
        else:
            seen = np.where(again, np.minimum(2 + np.floor(log / np.log(1.6)), _TOP), 1)
        future = np.concatenate([seen, [len(trace.prompt_blocks)]]).astype(np.int32)
        return future, np.empty(0, np.int64)
