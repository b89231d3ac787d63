"""A policy from a wheel of someone else's: no file of this package is edited, and a broken one harms no other."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands.support import CHECKOUT, QUIET, SMALL, environment, run

FILES = {
    "pyproject.toml": """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "mru-policy"
version = "1.0"
[tool.setuptools]
packages = ["mru_policy", "mru_policy.conf", "mru_policy.conf.agent", "hydra_plugins.mru_policy"]
[tool.setuptools.package-data]
"*" = ["*.yaml"]
""",
    "mru_policy/__init__.py": "",
    "mru_policy/conf/__init__.py": "",
    "mru_policy/conf/agent/__init__.py": "",
    "mru_policy/policy.py": '''
"""Most recently used: what was released last is evicted first."""
from saecache_rl.agents import Fixed
from saecache_rl.cache.layout import ON_RELEASE
from saecache_rl.cache.policy import Functions, Policy
from saecache_rl.compiled import compiled

@compiled(ON_RELEASE)
def on_release(cache, chain, size):
    for i in range(size):
        cache.blocks[chain[i]].key = -cache.pool[0].release

class MRU(Policy):
    name = "mru"
    def functions(self):
        return Functions(on_release=on_release)

class Broken(Fixed):
    def observe(self, stats, reward):
        raise RuntimeError("this agent is broken")
''',
    "mru_policy/conf/agent/mru.yaml": (
        "_target_: saecache_rl.agents.Fixed\nname: mru\npolicy: {_target_: mru_policy.policy.MRU}\n"
    ),
    "mru_policy/conf/agent/broken.yaml": (
        "_target_: mru_policy.policy.Broken\nname: broken\npolicy: {_target_: mru_policy.policy.MRU}\n"
    ),
    "hydra_plugins/mru_policy/__init__.py": """
from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin

class MRUSearchPath(SearchPathPlugin):
    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append(provider="mru-policy", path="pkg://mru_policy.conf")
""",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel is installed."""
    source, site = tmp_path_factory.mktemp("mru"), tmp_path_factory.mktemp("site")
    for name, content in FILES.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(content)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(source), str(source)]
    subprocess.run(build, check=True, env=environment(), stdin=subprocess.DEVNULL, capture_output=True)
    (wheel,) = source.glob("*.whl")
    install = [*pip, "install", "--no-deps", "--no-index", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True, env=environment(), stdin=subprocess.DEVNULL, capture_output=True)
    return site


def test_a_policy_from_a_wheel_runs_in_compare(site: Path, tmp_path: Path) -> None:
    path = f"{CHECKOUT}:{site}"
    arguments = [*SMALL, *QUIET, "agents=[lru,mru,broken,optimum]"]
    code, out, error = run("compare", arguments, tmp_path, PYTHONPATH=path)
    # The broken one is named; the others are there.
    assert code == 1, error
    assert error.count("\n") == 1
    assert "1 runs failed (broken at " in error
    assert "RuntimeError: this agent is broken" in error
    folder = Path(out.splitlines()[-1])
    with (folder / "results.csv").open(newline="") as file:
        ratio = {row["agent"]: float(row["token_hit_ratio"]) for row in csv.DictReader(file)}
    assert list(ratio) == ["lru", "mru", "optimum"]
    assert 0 < ratio["mru"] < ratio["optimum"]
    assert ratio["mru"] != ratio["lru"]
    assert "| mru |" in (folder / "table.md").read_text()
    assert "this agent is broken" in (folder / "failures.log").read_text()


def test_help_and_messages_list_it(site: Path, tmp_path: Path) -> None:
    path = f"{CHECKOUT}:{site}"
    code, out, _ = run("train", ["--help"], tmp_path, PYTHONPATH=path)
    assert code == 0
    assert re.search(r"agent: .*\bbroken,", out)
    assert " mru," in out
    code, _, error = run("train", [*SMALL, "agent=mruu"], tmp_path, PYTHONPATH=path)
    assert (code, error.count("\n")) == (2, 1)
    assert "did you mean 'mru'?" in error
