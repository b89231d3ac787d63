"""An agent goes on where its file has it; a file that can't be used is named, kept, and costs nothing else."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from saecache_rl import checkpoint
from saecache_rl.configured import make
from saecache_rl.engines.stats import WindowStats
from saecache_rl.engines.vllm.agent_file import SHARE, AgentFile, check_path
from saecache_rl.engines.vllm.core import LiveCache, RequestFacts
from saecache_rl.engines.vllm.serving import Choice, Serving
from saecache_rl.errors import InputError


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def taught(name: str = "saecache") -> Any:
    """An agent that has seen a few windows."""
    agent = make("agent", name)
    agent.reset(0)
    live = LiveCache(agent.policy, 8, 16)
    stats = WindowStats.empty()
    for number in range(3):
        live.begin_window(agent.act(stats))
        prompt, types = np.arange(2) + 2 * number, np.zeros(2, np.uint8)
        live.access(RequestFacts(number=number, prompt_tokens=33, prompt=prompt, types=types), np.empty(0, np.int32))
        stats = live.end_window()
        agent.observe(stats, 0.5)
    return agent


def saved(path: Path, name: str = "saecache") -> Any:
    agent = taught(name)
    file = AgentFile(path, agent)
    file.after_window(agent.act(WindowStats.empty()))
    return agent


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)  # vLLM, if it was imported, has it otherwise
    # A command that ran in this process has its own way of telling, and turned all loggers off that there were.
    monkeypatch.setattr(logging.getLogger("vllm.saecache_rl"), "disabled", False)
    caplog.set_level(logging.INFO, logger="vllm.saecache_rl")
    return caplog


def test_a_second_agent_goes_on_to_the_bit(tmp_path: Path) -> None:
    path = tmp_path / "agent.npz"
    first = saved(path)
    second = make("agent", "saecache")
    assert AgentFile(path, second).restore(1)
    assert second.act(WindowStats.empty()) == first.act(WindowStats.empty()) != first.policy.space().start()
    assert str(second.state_dict()) == str(first.state_dict())
    assert checkpoint.load(path)["parameters"] == first.act(WindowStats.empty()).as_dict()


def test_without_a_file_it_starts_from_its_defaults(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    agent = make("agent", "saecache")
    assert not AgentFile(tmp_path / "agent.npz", agent).restore(0)
    assert agent.act(WindowStats.empty()) == agent.policy.space().start()
    assert [r.levelname for r in log.records] == ["INFO"]
    assert not list(tmp_path.iterdir())


def test_what_the_policy_itself_has_learned_outlives_the_cache(tmp_path: Path) -> None:
    path = tmp_path / "agent.npz"
    agent = make("agent", "adaptive")
    agent.reset(0)
    serving = Serving(Choice(agent, 1, file=AgentFile(path, agent)), 8, 16)
    start = serving.live.learned.copy()
    serving.live.learned[:] += np.arange(len(start)) / len(start)
    learned = serving.live.learned.copy()
    assert np.shares_memory(serving.live.learned, serving.live.cache.reals)
    serving.live.reset(list(range(1, 9)))
    assert np.array_equal(serving.live.learned, learned)
    serving.after_end()
    again = make("agent", "adaptive")
    file = AgentFile(path, again)
    assert file.restore(0)
    other = Serving(Choice(again, 1, file=file), 32, 16)
    assert np.array_equal(other.live.cache.reals, learned)
    assert not np.array_equal(start, learned)


@pytest.mark.parametrize("spoil", [lambda learned: learned[1:], lambda learned: learned * np.nan])
def test_what_another_version_has_learned_is_refused(spoil: Any, tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "agent.npz"
    saved(path, "adaptive")
    state = checkpoint.load(path)
    checkpoint.save(path, state | {"learned": spoil(state["learned"])})
    agent = make("agent", "adaptive")
    file = AgentFile(path, agent)
    assert not file.restore(0)
    assert "of another version, or not finite" in log.records[-1].getMessage()
    serving = Serving(Choice(agent, 1, file=file), 8, 16)
    assert np.array_equal(serving.live.learned, agent.policy.state(8)[0])


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def text(path: Path) -> None:
    path.write_text("not ours\n")


def of_a_run(path: Path) -> None:
    checkpoint.save(path, {"agent": {}, "engine": {}})


def of_another_agent(path: Path) -> None:
    saved(path, "unicache")


def of_other_modules(path: Path) -> None:
    state = checkpoint.load(path)
    del state["state"]["modules"]["meta"]
    checkpoint.save(path, state)


def out_of_bounds(path: Path) -> None:
    state = checkpoint.load(path)
    state["state"]["params"]["alpha.chat"] = 1e9
    checkpoint.save(path, state)


def without_numbers(path: Path) -> None:
    state = checkpoint.load(path)
    state["state"]["params"] = 7
    checkpoint.save(path, state)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (damage, "not a whole checkpoint"),
        (text, "not a whole checkpoint"),
        (of_a_run, "not one of an agent"),
        (of_another_agent, "of agent unicache with policy unicache, not of saecache with saecache"),
        (of_other_modules, "meta"),
        (out_of_bounds, "alpha.chat"),
        (without_numbers, "int"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_it_cannot_use_is_named_and_kept(
    spoil: Any, says: str, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "agent.npz"
    saved(path)
    spoil(path)
    content = path.read_bytes()
    (tmp_path / "agent.npz.unusable").write_text("an earlier one")
    agent = taught()
    file = AgentFile(path, agent)
    assert not file.restore(0)
    assert agent.act(WindowStats.empty()) == agent.policy.space().start()
    assert str(agent.state_dict()) == str(make("agent", "saecache").state_dict())
    (line,) = [r.getMessage() for r in log.records]
    assert says in line
    assert f"{path}: " in line
    assert str(tmp_path / "agent.npz.unusable-2") in line
    assert "\n" not in line
    assert (tmp_path / "agent.npz.unusable-2").read_bytes() == content
    assert (tmp_path / "agent.npz.unusable").read_text() == "an earlier one"
    file.after_window(agent.act(WindowStats.empty()))
    assert AgentFile(path, make("agent", "saecache")).restore(0)


def test_a_file_that_cannot_be_moved_is_not_written_over(
    tmp_path: Path, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "agent.npz"
    path.write_text("not ours")

    def refused(self: Path, target: Path) -> Path:
        raise PermissionError("refused")

    monkeypatch.setattr(Path, "rename", refused)
    agent = make("agent", "saecache")
    file = AgentFile(path, agent)
    assert not file.restore(0)
    file.after_window(agent.act(WindowStats.empty()))
    file.close()
    assert path.read_text() == "not ours"
    (line,) = [r.getMessage() for r in log.records]
    assert "nothing is saved in this run" in line


def test_saving_takes_a_small_part_of_the_time_and_is_made_up_for_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, path, agent = Clock(), tmp_path / "agent.npz", make("agent", "saecache")
    file = AgentFile(path, agent, clock)
    start = agent.act(WindowStats.empty())
    save = checkpoint.save

    def slow(*arguments: Any) -> None:
        clock.now += 0.5
        save(*arguments)

    monkeypatch.setattr(checkpoint, "save", slow)

    def window(value: float) -> float:
        file.after_window(start.replace({"gamma": value}))
        return float(checkpoint.load(path)["parameters"]["gamma"])

    assert window(1.5) == 1.5
    clock.now += 0.5 / SHARE - 1
    assert window(2.5) == 1.5
    clock.now += 1
    assert window(3.5) == 3.5
    assert window(4.5) == 3.5
    file.close()
    assert checkpoint.load(path)["parameters"]["gamma"] == 4.5
    path.unlink()
    file.close()
    assert not path.exists(), "nothing is new"


def test_a_disk_that_fails_is_counted_and_nothing_else(tmp_path: Path) -> None:
    agent = make("agent", "saecache")
    agent.reset(0)
    serving = Serving(Choice(agent, 1, file=AgentFile(tmp_path / "no such folder" / "agent.npz", agent)), 8, 16)
    serving.after_end()
    serving.after_end()
    serving.close()
    assert serving.counts.errors["checkpoint"] >= 1
    assert serving.live.window == 2


@pytest.mark.parametrize("name", ["", "no such folder/agent.npz"])
def test_a_path_that_cannot_be_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="folder"):
        check_path(str(tmp_path / name))
    assert check_path(str(tmp_path / "agent.npz")) == tmp_path / "agent.npz"
