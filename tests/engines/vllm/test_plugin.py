"""The plug-in: off unless asked for, refuses by name what it does not know, may be registered again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
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
    from vllm.v1.metrics.loggers import StatLoggerManager

    before = scheduler.KVCacheManager, scheduler.Scheduler, async_scheduler.AsyncScheduler
    begin = StatLoggerManager.__init__
    yield scheduler, async_scheduler
    scheduler.KVCacheManager, scheduler.Scheduler, async_scheduler.AsyncScheduler = before
    StatLoggerManager.__init__ = begin


def test_off_without_an_agent(monkeypatch: pytest.MonkeyPatch, restored: Any) -> None:
    monkeypatch.delenv(plugin.AGENT, raising=False)
    own = restored[0].KVCacheManager
    plugin.register()
    assert restored[0].KVCacheManager is own


def test_off_it_costs_nothing_to_import() -> None:
    script = """
import os, sys
os.environ.pop("SAECACHE_AGENT", None)
from saecache_rl.engines.vllm import plugin
plugin.register()
print([name for name in ("vllm", "torch", "numba", "hydra") if name in sys.modules])
"""
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_registers_again_and_again(monkeypatch: pytest.MonkeyPatch, restored: Any) -> None:
    from saecache_rl.engines.vllm.manager import PolicyKVCacheManager

    monkeypatch.setenv(plugin.AGENT, "saecache")
    plugin.register()
    plugin.register()
    assert restored[0].KVCacheManager is PolicyKVCacheManager
    assert issubclass(restored[1].AsyncScheduler, restored[0].Scheduler.__mro__[2])
    assert plugin.choice_of_environment().agent.name == "saecache"


@pytest.mark.parametrize(
    ("name", "value"),
    [(plugin.AGENT, "saecash"), (plugin.WINDOW, "0"), (plugin.SEED, "x"), (plugin.CHECKPOINT, "/proc/none/agent.npz")],
)
def test_a_mistake_is_one_line(monkeypatch: pytest.MonkeyPatch, restored: Any, name: str, value: str) -> None:
    monkeypatch.setenv(plugin.AGENT, "saecache")
    monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=name) as caught:
        plugin.register()
    assert "\n" not in str(caught.value)
    assert value in str(caught.value)


def test_each_engine_of_several_has_its_own_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    environment = {plugin.AGENT: "saecache", plugin.CHECKPOINT: str(tmp_path / "agent.npz")}
    paths = []
    for rank in range(2):
        parallel = SimpleNamespace(data_parallel_index=rank)
        model = SimpleNamespace(skip_tokenizer_init=True)
        monkeypatch.setattr(plugin, "vllm_config", SimpleNamespace(parallel_config=parallel, model_config=model))
        file = plugin.choice_of_environment(environment).file
        assert file is not None
        paths.append(file.path)
    assert paths == [tmp_path / "agent.npz", tmp_path / "agent.npz.1"]


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

    class KVCacheBlock:
        def __init__(self, block_id: int) -> None:
            self.ref_cnt = 0

    with pytest.raises(InputError, match=r"vLLM 0\.99\.1: KVCacheBlock has no _block_hash,"):
        check_signatures("0.99.1", {"KVCacheBlock": KVCacheBlock})
