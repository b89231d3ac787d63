"""Learn the choice of victims, and see what it hits on requests drawn from another seed.

    python scripts/train_eviction.py --workload agentic_shift --requests 2000
    python scripts/train_eviction.py --workload agentic_shift --requests 2000 --learner ppo --steps 100000

`imitation` learns linear scores of the candidates by imitating the optimum (DAgger: Ross et al., AISTATS 2011; for
caches: Liu et al., ICML 2020): the teacher sees the future of the requests trained on, what is learned sees the
observation alone. `ppo` is sb3-contrib's MaskablePPO with one small network for every candidate; it needs the extra rl.

Prints token hit ratios of LRU, of what was trained and of the exact optimum, at one capacity, on the requests trained
on and on the others. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from saecache_rl.cache.policies.lru import LRU
from saecache_rl.cache.policies.optimum import Optimum, next_uses, uses_ahead
from saecache_rl.engines.capacity import auto_capacity
from saecache_rl.engines.simulator import Simulator
from saecache_rl.envs import EvictionLayout, PrefixCacheEvictionEnv
from saecache_rl.errors import InputError
from saecache_rl.workloads.catalogue import make
from saecache_rl.workloads.trace import Trace

Reals = npt.NDArray[np.float64]
Act = Callable[[npt.NDArray[np.float32], npt.NDArray[np.int8]], int]  # observation and action mask to action

ROUNDS = 4  # of imitation
RIDGE = 1e-5
HIDDEN = 64  # units of PPO's networks


def token_hit_ratio(env: PrefixCacheEvictionEnv, act: Act) -> float:
    """Serve an episode."""
    observation, info = env.reset(seed=0)
    over = False
    while not over:
        observation, _, _, over, info = env.step(act(observation, info["action_mask"]))
    return float(info["stats"].token_hit_ratio)


def inputs(layout: EvictionLayout, observation: npt.NDArray[np.float32]) -> Reals:
    """(k, inputs): a candidate's features, the first seven squared, and all times its age."""
    of = layout.split(observation)[0].astype(np.float64)
    return np.concatenate([of, of[:, :7] ** 2, of[:, 1:2] * of], axis=1)


def fit(x: Reals, masks: npt.NDArray[np.bool_], teacher: Reals) -> Reals:
    """Weights of a masked softmax over candidates nearest to the teacher's; (n, k, inputs), (n, k), (n, k)."""

    def loss(weights: Reals) -> tuple[float, Reals]:
        scores = np.where(masks, x @ weights, -np.inf)
        scores -= scores.max(axis=1, keepdims=True)
        chances = np.exp(scores)
        total = chances.sum(axis=1, keepdims=True)
        entropy = -(teacher * np.where(masks, scores - np.log(total), 0.0)).sum() / len(x)
        slope = np.einsum("nk,nki->i", chances / total - teacher, x) / len(x)
        return entropy + RIDGE * (weights @ weights), slope + 2 * RIDGE * weights

    found = minimize(loss, np.zeros(x.shape[2]), jac=True, method="L-BFGS-B", options={"maxiter": 300})
    return np.asarray(found.x, np.float64)


def imitate(env: PrefixCacheEvictionEnv) -> Act:
    """Follow the teacher for an episode, then what was learned, and learn what the teacher would have done there."""
    uses = next_uses(env.trace)
    x: list[Reals] = []
    masks: list[npt.NDArray[np.int8]] = []
    teacher: list[Reals] = []
    weights: Reals | None = None

    def likeliest(observation: npt.NDArray[np.float32], mask: npt.NDArray[np.int8]) -> int:
        return int(np.where(mask, inputs(env.layout, observation) @ weights, -np.inf).argmax())

    def taught(observation: npt.NDArray[np.float32], mask: npt.NDArray[np.int8]) -> int:
        ahead = uses_ahead(env.trace, uses, env.engine.candidates, env.engine.position)
        best = np.zeros(len(mask))
        best[: len(ahead)] = ahead == ahead.max()
        x.append(inputs(env.layout, observation))
        masks.append(mask)
        teacher.append(best / best.sum())
        return int(best.argmax()) if weights is None else likeliest(observation, mask)

    for number in range(ROUNDS):
        ratio = token_hit_ratio(env, taught)
        weights = fit(np.array(x), np.array(masks, bool), np.array(teacher))
        print(f"round {number}: {100 * ratio:.2f} %, {len(x):,} choices taught")
    return likeliest


def per_candidate_policy() -> type:
    """A policy that scores each candidate by one network, so that what it learns holds wherever a candidate stands."""
    import torch
    from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
    from torch import nn

    def network(width: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(width, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1))

    class Scores(nn.Module):
        """A score for each candidate; the value is the mean over candidates of a network of its own."""

        def __init__(self, layout: EvictionLayout) -> None:
            super().__init__()
            self.layout = layout
            self.latent_dim_pi, self.latent_dim_vf = layout.candidates, 1
            width = len(layout.features) + len(layout.shared)
            self.score, self.value = network(width), network(width)

        def _joined(self, observations: Any) -> Any:
            candidates, shared = self.layout.split(observations)
            return torch.cat([candidates, shared.unsqueeze(1).expand(-1, candidates.shape[1], -1)], dim=2)

        def forward_actor(self, observations: Any) -> Any:
            return self.score(self._joined(observations)).squeeze(2)

        def forward_critic(self, observations: Any) -> Any:
            return self.value(self._joined(observations)).mean(1)

        def forward(self, observations: Any) -> Any:
            return self.forward_actor(observations), self.forward_critic(observations)

    class PerCandidate(MaskableActorCriticPolicy):
        def _build_mlp_extractor(self) -> None:
            self.mlp_extractor = Scores(EvictionLayout.of(int(self.action_space.n)))

        def _build(self, lr_schedule: Any) -> None:
            super()._build(lr_schedule)
            self.action_net = self.value_net = nn.Identity()
            self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)

    return PerCandidate


def ppo(env: PrefixCacheEvictionEnv, steps: int, seed: int) -> Act:
    """Train MaskablePPO for so many steps."""
    try:
        import torch
        from sb3_contrib import MaskablePPO
        from stable_baselines3.common.monitor import Monitor
        from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
    except ImportError as error:
        raise InputError(f"learner=ppo: needs the extra rl: pip install -e '.[rl]' ({error})") from None
    torch.set_num_threads(1)
    # Rewards are shares of a whole trace's prompt tokens, far below 1: brought to unit variance.
    environments = VecNormalize(DummyVecEnv([lambda: Monitor(env)]), norm_obs=False, gamma=0.999)
    options = {"n_steps": 2048, "batch_size": 256, "gamma": 0.999, "gae_lambda": 0.98, "seed": seed, "device": "cpu"}
    model = MaskablePPO(per_candidate_policy(), environments, **options).learn(steps)

    # Drawn, as in training: while a policy is nearly uniform its likeliest actions are arbitrary, and hit far less.
    return lambda observation, mask: int(model.predict(observation, action_masks=mask.astype(bool))[0])


def reference(trace: Trace, num_blocks: int) -> dict[str, float]:
    """Token hit ratios of LRU and the optimum."""
    policies = (LRU(), Optimum())
    return {p.name: Simulator(trace, p, num_blocks).serve(trace.num_requests).token_hit_ratio for p in policies}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="agentic_shift", help="a generated workload of conf/workload")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--candidates", type=int, default=16)
    parser.add_argument("--learner", choices=("imitation", "ppo"), default="imitation")
    parser.add_argument("--steps", type=int, default=100_000, help="of PPO")
    parser.add_argument("--seed", type=int, default=0, help="of the requests trained on, and of PPO; others: seed + 1")
    given = parser.parse_args()
    try:
        traces = [make(given.workload, f"requests={given.requests}", f"seed={given.seed + i}") for i in range(2)]
        num_blocks = max(auto_capacity(traces[0]), *(int(trace.request_blocks.max()) for trace in traces))
        trained_on, others = (
            PrefixCacheEvictionEnv(trace, num_blocks=num_blocks, candidates=given.candidates) for trace in traces
        )
        act = imitate(trained_on) if given.learner == "imitation" else ppo(trained_on, given.steps, given.seed)
    except InputError as error:
        print(f"train_eviction: {error}", file=sys.stderr)
        return 2
    result: dict[str, Any] = {"workload": given.workload, "num_blocks": num_blocks, "learner": given.learner}
    for name, env in (("trained_on", trained_on), ("others", others)):
        ratios = reference(env.trace, num_blocks) | {given.learner: token_hit_ratio(env, act)}
        print(f"{name}: " + ", ".join(f"{policy} {100 * ratio:.2f} %" for policy, ratio in ratios.items()))
        result[name] = {policy: round(ratio, 4) for policy, ratio in ratios.items()}
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
