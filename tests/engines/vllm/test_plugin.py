"""The plug-in: off unless asked for, refuses by name what it does not know, may be registered again."""

from __future__ import annotations

from typing import Any

import pytest

from saecache_rl.engines.vllm import plugin
from saecache_rl.engines.vllm.signatures import check_signatures
from saecache_rl.errors import InputError
from tests.engines.vllm import support  # noqa: F401

pytestmark = pytest.mark.live


@pytest.fixture
def restored() -> Any:
    from vllm.v1.core.sched import async_scheduler, scheduler

    before = scheduler.KVCacheManager, scheduler.Scheduler, async_scheduler.AsyncScheduler
    yield scheduler, async_scheduler
    scheduler.KVCacheManager, scheduler.Scheduler, async_scheduler.AsyncScheduler = before


def test_off_without_an_agent(monkeypatch: pytest.MonkeyPatch, restored: Any) -> None:
    monkeypatch.delenv(plugin.AGENT, raising=False)
    own = restored[0].KVCacheManager
    plugin.register()
    assert restored[0].KVCacheManager is own


def test_registers_again_and_again(monkeypatch: pytest.MonkeyPatch, restored: Any) -> None:
    from saecache_rl.engines.vllm.manager import PolicyKVCacheManager

    monkeypatch.setenv(plugin.AGENT, "saecache")
    plugin.register()
    plugin.register()
    assert restored[0].KVCacheManager is PolicyKVCacheManager
    assert issubclass(restored[1].AsyncScheduler, restored[0].Scheduler.__mro__[2])
    assert plugin.choice_of_environment().agent.name == "saecache"


@pytest.mark.parametrize(("name", "value"), [(plugin.AGENT, "saecash"), (plugin.WINDOW, "0"), (plugin.SEED, "x")])
def test_a_mistake_is_one_line(monkeypatch: pytest.MonkeyPatch, restored: Any, name: str, value: str) -> None:
    monkeypatch.setenv(plugin.AGENT, "saecache")
    monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=name) as caught:
        plugin.register()
    assert "\n" not in str(caught.value)
    assert value in str(caught.value)


def test_an_oracle_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="optimum"):
        plugin.choice_of_environment({plugin.AGENT: "optimum"})


def test_another_signature_is_refused_with_version_and_method() -> None:
    check_signatures()

    class BlockPool:
        def get_new_blocks(self, num_blocks: int, group: int) -> None: ...

    with pytest.raises(InputError, match=r"vLLM 0\.99\.1: BlockPool\.get_new_blocks"):
        check_signatures("0.99.1", {"BlockPool": BlockPool})
    with pytest.raises(InputError, match=r"vLLM 0\.99\.1 has no KVCacheManager\.allocate_slots"):
        check_signatures("0.99.1", {"KVCacheManager": object})
