"""The environment in which one step chooses one victim.

env = gymnasium.make("saecache_rl:SAECache/PrefixCacheEviction-v0", workload="agentic_shift", candidates=16)
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Discrete

from saecache_rl.engines.stats import WindowStats
from saecache_rl.engines.stepped import SteppedSimulator
from saecache_rl.envs.arguments import capacity, known_choice, predictor_of, trace_of, whole_number
from saecache_rl.envs.candidates import EvictionLayout, observe
from saecache_rl.envs.episode import EpisodeEnv, Observation
from saecache_rl.envs.picture import write_candidates
from saecache_rl.errors import InputError
from saecache_rl.predictor.base import Predictor
from saecache_rl.workloads.sessions import find_sessions
from saecache_rl.workloads.trace import Trace

ENGINES = ("simulator",)
VICTIMS = ("block", "run")

Step = tuple[Observation, float, bool, bool, dict[str, Any]]


class PrefixCacheEvictionEnv(EpisodeEnv[np.int64]):
    """Choose victims: one step evicts one of k leaves, then serves until the next victim is needed.

    - Candidates, least recent first: the least recent leaf of each queue and token type, and where k leaves room the
      least recent of the others. Candidate 0 is the block that LRU evicts; k = 1 is LRU.
    - Action: Discrete(k), the candidate to evict. Where fewer than k leaves exist the other actions are masked, by
      `action_masks` and in ``info["action_mask"]``; a masked action evicts candidate 0, and is counted.
    - Observation: Box [0, 1] float32 by `layout` (`EvictionLayout`): what is known of each candidate and of the request
      that needs room.
    - Reward: hit tokens of the requests scheduled since the last choice / prompt tokens of the whole trace, so that an
      episode's rewards add up to its token hit ratio. What was hit before the first choice comes with the first step.
    - An episode is truncated after the last request and never terminates. Its last ``info`` has `stats`, the
      `WindowStats` of the whole trace.

    Nothing is drawn at random here: each episode serves the same requests.

    Attributes:
        trace: the requests.
        engine: the `SteppedSimulator` that serves them; `engine.candidates` are the candidates' records.
        layout: the entries of an observation.
        num_blocks: capacity.
    """

    engine: SteppedSimulator
    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 10}  # noqa: RUF012 Gymnasium's own

    def __init__(
        self,
        workload: Trace | str | Mapping[str, Any],
        engine: str = "simulator",
        num_blocks: int | Literal["auto"] = "auto",
        candidates: int = 16,
        victim: str = "run",
        sessions: str = "lineage",
        predictor: Predictor | str | Mapping[str, Any] | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Make the environment; nothing is served before `reset`.

        Args:
            workload: a trace, a name of conf/workload, or a mapping whose `_target_` gives a trace.
            engine: "simulator"; a live engine serves the tuning environment only.
            num_blocks: capacity, at least the blocks of the largest request; "auto": `auto_capacity`.
            candidates: k, leaves to choose from.
            victim: what a step evicts: "block", the leaf alone; "run", the leaf and the blocks above it that were last
                accessed with it, as far as the request needs room.
            sessions: how a session is known, "lineage" or "hint".
            predictor: will a session go on? It decides the queue of first turns. A predictor, a name of conf/predictor
                or a mapping; None: it won't.
            render_mode: "ansi" or None.

        Raises:
            InputError: a value that no run can have, named, with the remedy.
        """
        if engine != "simulator" and (isinstance(engine, Mapping) or str(engine).startswith("vllm")):
            raise InputError("engine: a live engine serves SAECache/PrefixCacheTuning-v0 only; use engine=simulator")
        known_choice("engine", engine, ENGINES)
        known_choice("victim", victim, VICTIMS)
        if render_mode is not None:
            known_choice("render_mode", render_mode, tuple(self.metadata["render_modes"]))
        k = whole_number("candidates", candidates, "a choice is among at least one leaf")
        self.trace = trace_of(workload)
        self.num_blocks = capacity(num_blocks, self.trace)
        if k > self.num_blocks:
            raise InputError(f"candidates={k}: the cache has {self.num_blocks} blocks; give no more")
        self.predictor = predictor_of(predictor)
        self.victim = victim
        self.render_mode = render_mode
        self.sessions = find_sessions(self.trace, sessions)
        self.continues = None if self.predictor is None else self.predictor.continues(self.trace, self.sessions)
        self.layout = EvictionLayout.of(k)
        self.observation_space = self.layout.box()
        self.action_space = Discrete(k)
        self._masks = np.arange(k) < np.maximum(np.arange(k + 1), 1)[:, None]
        self.engine = self._engine()
        if self.engine.advance() == 0:
            raise InputError(
                f"num_blocks={self.num_blocks}: {self.trace.name} never fills it, so that no victim is ever chosen; "
                "lower it"
            )
        self._prompt_tokens = int(self.trace.prompt_tokens.sum(dtype=np.int64))
        self._rewarded = 0
        self._masked = 0

    def _engine(self) -> SteppedSimulator:
        k = self.layout.candidates
        return SteppedSimulator(self.trace, self.num_blocks, k, self.victim == "run", self.sessions, self.continues)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Empty the cache and serve up to the first choice.

        Raises:
            InputError: `options` has an entry; there are none.
        """
        self._begin(seed, options)
        self.engine.advance()
        self._rewarded = 0
        self._masked = 0
        return self._observe(), self._info()

    def step(self, action: np.int64 | int) -> Step:
        """Evict candidate `action`, or candidate 0 if `action` is masked, and serve up to the next choice.

        Raises:
            InputError: `action` is no whole number of 0 … k - 1.
            ResetNeeded: before the first `reset`, or after the last request.
        """
        self._check_ready()
        choice = self._choice(action)
        if choice >= self.engine.num_candidates:
            self._masked += 1
            choice = 0
        over = self.engine.advance(choice) == 0
        hit_tokens = self.engine.hit_tokens_so_far
        reward = (hit_tokens - self._rewarded) / self._prompt_tokens
        self._rewarded = hit_tokens
        info = self._info()
        if over:
            info["stats"] = self.stats()
        return self._observe(), reward, False, over, info

    def _choice(self, action: object) -> int:
        try:
            choice = operator.index(action)  # type: ignore[arg-type]
        except TypeError:
            choice = -1
        if isinstance(action, bool) or not 0 <= choice < self.layout.candidates:
            raise InputError(f"action {action!r}: give the number of a candidate, 0 to {self.layout.candidates - 1}")
        return choice

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Return (k,) booleans, true for each candidate: what sb3-contrib's MaskablePPO asks for.

        After the end of an episode, and before the first `reset`, it is true for action 0 alone, so that a masked
        distribution stays one.
        """
        masks: npt.NDArray[np.bool_] = self._masks[self.engine.num_candidates if self._ready else 0].copy()
        return masks

    def stats(self) -> WindowStats:
        """Statistics of all requests so far, the waiting one included; at the end, of the whole trace."""
        return self.engine.stats()

    def _observe(self) -> Observation:
        observation = np.empty(len(self.layout), np.float32)
        observe(self.engine.handle, self.trace.block_size, observation)
        return observation

    def _info(self) -> dict[str, Any]:
        return {
            "action_mask": self.action_masks().view(np.int8),
            "request": self.engine.position,
            "masked_actions": self._masked,
        }

    def render(self) -> Any:
        """Show the candidates as a table, where `render_mode` is "ansi"."""
        if self.render_mode == "ansi":
            engine = self.engine
            now = float(engine.cache.pool["now"][0])
            return write_candidates(engine.candidates, now=now, request=engine.position, needed=engine.needed)
        return None
