"""Every agent of conf/agent through the conformance suite, and through real windows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra import compose, initialize_config_module
from hydra.errors import ConfigCompositionException
from hydra.utils import instantiate

import saecache_rl
from saecache_rl.agents import Agent, Composite, Fixed, Frozen, Module
from saecache_rl.agents.testing import AgentConformance, random_stats
from saecache_rl.cache.params import Param, ParamSpace, PolicyParams
from saecache_rl.cache.policy import Policy
from saecache_rl.engines.simulator import Simulator
from saecache_rl.engines.stats import WindowStats
from saecache_rl.errors import InputError
from tests.support import tiny_trace

FOLDER = Path(saecache_rl.__file__).parent / "conf" / "agent"
NAMES = sorted(file.stem for file in FOLDER.glob("*.yaml"))
SLOTS = {
    folder.name: sorted(file.stem for file in folder.glob("*.yaml")) for folder in FOLDER.iterdir() if folder.is_dir()
}


def from_yaml(name: str, *overrides: str) -> Agent:
    with initialize_config_module("saecache_rl.conf", version_base="1.3"):
        config = compose(overrides=[f"+agent={name}", *overrides])
    agent: Agent = instantiate(config.agent, _convert_="all")
    return agent


@pytest.mark.parametrize("name", NAMES)
class TestEveryYaml(AgentConformance):
    @pytest.fixture(autouse=True)
    def _name(self, name: str) -> None:
        self.name = name

    def make(self) -> Agent:
        return from_yaml(self.name)

    def start(self, agent: Agent) -> PolicyParams:
        return super().start(agent).replace({"guard.regret": 0.0} if self.name == "adaptive_eager" else {})

    def test_is_named_as_its_file(self) -> None:
        assert self.make().name == self.name

    def test_serves_a_trace(self) -> None:
        trace = tiny_trace(0, 300)
        agent = self.make()
        agent.reset(0)
        engine = Simulator(trace, agent.policy, 2 * int(trace.request_blocks.max()))
        stats = WindowStats.empty()
        while not engine.done:
            stats = engine.serve(25, agent.act(stats))
            agent.observe(stats, stats.token_hit_ratio)
        assert engine.position == trace.num_requests


def test_the_agents_that_must_exist() -> None:
    peers = {"fifo", "lfu", "slru", "s3fifo", "arc", "gdsf", "lhd", "lecar"}
    assert {"lru", *peers, "unicache", "saecache", "saecache_fixed", "optimum"} <= set(NAMES)


@pytest.mark.parametrize("slot", SLOTS)
def test_each_slot_can_be_frozen_and_then_stays_at_its_start(slot: str) -> None:
    whole, frozen = from_yaml("saecache"), from_yaml("saecache", f"agent/{slot}=frozen")
    assert isinstance(whole, Composite)
    assert isinstance(frozen, Composite)
    assert isinstance(frozen.modules[slot], Frozen)
    generator = np.random.default_rng(0)
    for window in range(40):
        stats = random_stats(generator, window)
        whole.observe(stats, 0.0)
        frozen.observe(stats, 0.0)
    start, end = whole.policy.space().start().as_dict(), frozen.act(stats).as_dict()
    owned = whole.modules[slot].owns
    assert all(end[name] == start[name] for name in owned)
    moved = whole.act(stats).as_dict()
    assert all(moved[name] != start[name] for name in owned)


@pytest.mark.parametrize(("slot", "option"), [(slot, option) for slot, options in SLOTS.items() for option in options])
def test_every_option_composes_under_a_root_config(slot: str, option: str, tmp_path: Path) -> None:
    (tmp_path / "root.yaml").write_text("defaults:\n  - agent: saecache\n  - _self_\n")
    from hydra import initialize_config_dir

    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        search = "hydra.searchpath=[pkg://saecache_rl.conf]"
        config = compose("root", [search, f"agent/{slot}={option}"])
        assert config.agent[slot]._target_.startswith("saecache_rl.agents.")
        assert set(compose("root", [search, "agent=lru"]).agent) == {"_target_", "name", "policy"}
        with pytest.raises(ConfigCompositionException):
            compose("root", [search, "agent=lru", f"agent/{slot}={option}"])
        with pytest.raises(ConfigCompositionException):
            compose("root", [search, "agent/queue_weights=temprature"])


class Two(Policy):
    name = "two"

    def space(self) -> ParamSpace:
        return ParamSpace((Param("alpha.chat", 1.0, 0.1, 3.0), Param("gamma", 1.0, 0.1, 8.0)))


class Owner(Module):
    state_names = ("count",)

    def __init__(self, *owns: str, sets: dict[str, float] | None = None) -> None:
        self._owns = owns
        self.sets = sets or {}
        self.count = 0

    @property
    def owns(self) -> tuple[str, ...]:
        return self._owns

    def reset(self, seed: int) -> None:
        self.count = seed

    def update(self, stats: WindowStats, params: Any, reward: float) -> dict[str, float]:
        return self.sets


def test_two_owners_of_one_parameter_are_refused() -> None:
    with pytest.raises(InputError, match="'first' and 'second' both own 'gamma'"):
        Composite("mine", Two(), first=Owner("gamma"), second=Owner("alpha.chat", "gamma"))


def test_an_owner_of_a_parameter_that_the_policy_lacks_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"'first' owns 'gama', which policy 'two' does not have; did you mean 'gamma'"
    ):
        Composite("mine", Two(), first=Owner("gama"))


def test_a_module_that_sets_what_it_does_not_own_is_refused() -> None:
    agent = Composite("mine", Two(), first=Owner("gamma", sets={"alpha.chat": 2.0}))
    with pytest.raises(InputError, match=r"'first' set 'alpha\.chat'"):
        agent.observe(random_stats(np.random.default_rng(0), 0), 0.0)


def test_what_nobody_owns_stays_and_values_are_clipped() -> None:
    agent = Composite("mine", Two(), first=Owner("gamma", sets={"gamma": 100.0}))
    agent.observe(random_stats(np.random.default_rng(0), 0), 0.0)
    assert agent.act(WindowStats.empty()).as_dict() == {"alpha.chat": 1.0, "gamma": 8.0}


def test_modules_get_seeds_of_their_own() -> None:
    agent = Composite("mine", Two(), first=Owner("gamma"), second=Owner("alpha.chat"))
    agent.reset(3)
    first, second = (module.count for module in agent.modules.values())  # type: ignore[attr-defined]
    assert first != second


def test_the_bandit_sets_what_other_modules_use() -> None:
    agent = from_yaml("saecache", "agent.meta.hold=1", "agent.meta.grid.temperature=[0.2,0.9]")
    assert isinstance(agent, Composite)
    seen = set()
    for window in range(10):
        agent.observe(random_stats(np.random.default_rng(window), window), 0.0)
        weights, gaps, types = (agent.modules[slot] for slot in ("queue_weights", "gaps", "token_weights"))
        assert gaps.rate_factor == types.rate_factor == weights.rate_factor  # type: ignore[attr-defined]
        seen.add((weights.temperature, weights.rate_factor))  # type: ignore[attr-defined]
    assert len(seen) == 6


def test_values_of_a_fixed_agent_are_checked() -> None:
    eager = from_yaml("adaptive_eager")
    assert eager.act(WindowStats.empty())["guard.regret"] == 0.0
    space = eager.policy.space()
    for value, problem in [(2.0, "outside"), ("much", "give a number"), (True, "give a number"), (math.nan, "finite")]:
        with pytest.raises(InputError, match=problem):
            Fixed("eager", eager.policy, {"guard.regret": value})
    with pytest.raises(InputError, match=r"guard\.regret"):
        Fixed("eager", eager.policy, {"guard.regrets": 0.0})
    assert Fixed("eager", eager.policy).act(WindowStats.empty()) == space.start()


def test_a_state_of_another_configuration_is_refused() -> None:
    saecache, unicache = from_yaml("saecache"), from_yaml("unicache")
    with pytest.raises(InputError, match="same configuration"):
        unicache.load_state_dict(saecache.state_dict())
    with pytest.raises(InputError, match="shape"):
        from_yaml("saecache", "agent.queue_weights.memory=9").load_state_dict(saecache.state_dict())
    with pytest.raises(InputError, match="same configuration"):
        Fixed("lru", Two()).load_state_dict(saecache.state_dict())
