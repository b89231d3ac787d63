"""The environment in which one step serves a window of requests under chosen parameters of a cache policy.

env = gymnasium.make("saecache_rl:SAECache/PrefixCacheTuning-v0", workload="agentic_shift", window=100)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, SupportsFloat

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box
from omegaconf import OmegaConf

from saecache_rl.cache.params import PolicyParams
from saecache_rl.cache.policies.saecache import SAECache
from saecache_rl.cache.policy import Policy
from saecache_rl.configured import by_name, make
from saecache_rl.engines.simulator import Simulator
from saecache_rl.engines.stats import WindowStats
from saecache_rl.engines.vllm.live_settings import LiveSettings, is_live
from saecache_rl.envs.arguments import capacity, known_choice, predictor_of, trace_of, whole_number
from saecache_rl.envs.episode import EpisodeEnv, Observation
from saecache_rl.envs.observation import ObservationLayout
from saecache_rl.envs.picture import draw, write
from saecache_rl.errors import InputError
from saecache_rl.predictor.base import Predictor
from saecache_rl.workloads.sessions import find_sessions
from saecache_rl.workloads.trace import Trace

ENGINES = ("simulator", "vllm", "vllm_cpu_tiny", "vllm_a40")
REWARDS = ("token_hit_ratio", "ttft")

Step = tuple[Observation, SupportsFloat, bool, bool, dict[str, Any]]


class PrefixCacheTuningEnv(EpisodeEnv[npt.NDArray[np.float32]]):
    """Tune a prefix-cache policy online: one step serves a window of requests.

    - Action: Box [-1, 1], an entry for each of the policy's parameters, mapped to its bounds by `param_space`.
    - Observation: Box float32 by `layout` (`ObservationLayout`): the window's statistics and the parameters in force.
    - Reward: the window's token hit ratio, or minus its mean seconds to the first token (``reward="ttft"``).
    - An episode is truncated after the last request and never terminates.
    - ``info["stats"]`` is the window's `WindowStats`, ``info["params"]`` the `PolicyParams` that it was served under.

    Nothing is drawn at random here: the workload is drawn from its own seed, and each episode serves the same requests.

    Attributes:
        trace: the requests.
        engine: what serves them: a `Simulator`, or a `LiveEngine`, which replays the workload scaled to its blocks.
        policy, param_space, layout: what is tuned, its parameters, and the entries of an observation.
        num_blocks, window: capacity in blocks, requests a step.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 10}  # noqa: RUF012 Gymnasium's own
    #: Engines that exist.
    engines: ClassVar[tuple[str, ...]] = ENGINES

    def __init__(
        self,
        workload: Trace | str | Mapping[str, Any],
        engine: str | Mapping[str, Any] = "simulator",
        num_blocks: int | Literal["auto"] = "auto",
        window: int = 100,
        policy: Policy | Mapping[str, Any] | None = None,
        sessions: str = "lineage",
        predictor: Predictor | str | Mapping[str, Any] | None = None,
        reward: str = "token_hit_ratio",
        render_mode: str | None = None,
    ) -> None:
        """Make the environment; nothing is served before `reset`.

        Args:
            workload: a trace, a name of conf/workload, or a mapping whose `_target_` gives a trace.
            engine: what serves the requests: a name of conf/engine, or such a node; all but "simulator" are a vLLM in
                this process, which starts at the first `reset`. Call `close` to shut it down.
            num_blocks: capacity, at least the blocks of the largest request; "auto": `auto_capacity`.
            window: requests a step.
            policy: whose parameters are tuned; None: SAECache.
            sessions: how a session is known, "lineage" or "hint".
            predictor: will a session go on? A predictor, a name of conf/predictor or a mapping; None: it won't.
            reward: "token_hit_ratio" or "ttft".
            render_mode: "ansi", "rgb_array" or None.

        Raises:
            InputError: a value that no run can have, named, with the remedy.
        """
        self._live = _live_settings(engine)
        known_choice("reward", reward, REWARDS)
        if render_mode is not None:
            known_choice("render_mode", render_mode, tuple(self.metadata["render_modes"]))
        if reward == "ttft" and self._live is None:
            raise InputError(
                "reward=ttft: the simulator's instant clock has no time to first token; use reward=token_hit_ratio"
            )
        self.window = whole_number("window", window, "a window has at least one request")
        trace = trace_of(workload)
        made = SAECache() if policy is None else make("policy", policy) if isinstance(policy, Mapping) else policy
        if not isinstance(made, Policy):
            raise InputError(f"policy: {policy!r} is no cache policy; give an instance of one")
        foresight = predictor_of(predictor)
        if self._live is not None:
            from saecache_rl.engines.vllm.scale import scaled

            trace = scaled(trace, self._live.block_size, self._live.max_model_len)
        self.trace = trace
        self.policy = made
        self.predictor = foresight
        self.num_blocks = capacity(num_blocks, trace)
        self.reward = reward
        self.render_mode = render_mode
        self.sessions = find_sessions(trace, sessions)
        self.continues = None if foresight is None else foresight.continues(trace, self.sessions)
        self.engine = self._engine()
        self.param_space = made.space()
        self.layout = ObservationLayout.of(self.param_space)
        self.observation_space = self.layout.box()
        self.action_space = Box(-1.0, 1.0, (len(self.param_space),), np.float32)
        self._stats = WindowStats.empty()
        self._params = self.param_space.start()

    def _engine(self) -> Any:
        if self._live is not None:
            from saecache_rl.engines.vllm.drive import live_engine

            return live_engine(
                self.trace, self.policy, self.num_blocks, self.sessions, self.continues, settings=self._live
            )
        return Simulator(self.trace, self.policy, self.num_blocks, self.sessions, self.continues)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Empty the cache and go back to the first request.

        Raises:
            InputError: `options` has an entry; there are none.
        """
        self._begin(seed, options)
        self._stats = WindowStats.empty()
        self._params = self.param_space.start()
        return self._observe(), self._info()

    def step(self, action: npt.NDArray[np.float32]) -> Step:
        """Serve the next window under the parameters that `action`, (n,) in [-1, 1], stands for."""
        return self.serve(self.param_space.from_action(action))

    def serve(self, params: PolicyParams | None = None) -> Step:
        """Serve the next window under `params`, exactly; None: as before.

        Raises:
            ResetNeeded: before the first `reset`, or after the last request.
        """
        self._check_ready()
        self._params = self._params if params is None else params
        self._stats = self.engine.serve(self.window, self._params)
        return self._observe(), self._reward(), False, self.engine.done, self._info()

    def _reward(self) -> float:
        """The window's token hit ratio, or minus its mean seconds to the first token."""
        if self.reward == "ttft":
            return -(self._stats.ttft_ms_mean or 0.0) / 1000.0
        return self._stats.token_hit_ratio

    def close(self) -> None:
        """Shut a live engine down; `reset` would start it again."""
        if self._live is not None:
            self.engine.close()

    def _observe(self) -> Observation:
        return self.layout.encode(self._stats, self._params, self.num_blocks)

    def _info(self) -> dict[str, Any]:
        return {"stats": self._stats, "params": self._params}

    def render(self) -> Any:
        """Show the cache by queue and token type: text ("ansi") or an RGB picture ("rgb_array"), by `render_mode`."""
        if self.render_mode == "ansi":
            return write(self.engine.held_by_type(), self.num_blocks, self._stats)
        if self.render_mode == "rgb_array":
            return draw(self.engine.held_by_type(), self.num_blocks)
        return None


def _live_settings(engine: object) -> LiveSettings | None:
    """The options of a live engine; None for the simulator."""
    if isinstance(engine, Mapping):
        node = engine
    else:
        known_choice("engine", engine, ENGINES)
        node = {"name": engine}
        if is_live(node):
            node = OmegaConf.to_container(OmegaConf.create(dict(by_name("engine", str(engine)))))  # type: ignore[assignment]
    if not is_live(node):
        return None
    from saecache_rl.engines.vllm.needs import need_vllm

    need_vllm()
    return LiveSettings.of(node)
