"""The package as it is installed: links in a checkout, real files in a wheel, kernels in the disk cache."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LINKED = ("envs", "agents", "conf")

checkout = pytest.mark.skipif(
    not (ROOT / "saecache_rl").is_dir(), reason="needs a checkout; these tests run on an installed wheel"
)

RUN_EVERYTHING = """
import gc
from numba.core.dispatcher import Dispatcher
from saecache_rl.cache.policies import arc, fifo, gdsf, lecar, lfu, lhd, lpc, lru, marconi, optimum, s3fifo, saecache
from saecache_rl.cache.policies import slru, tlru, unicache, workload_aware
from saecache_rl.cache.policies.hazard.policy import GuardedHazard, Hazard
from saecache_rl.engines.capacity import auto_capacity
from saecache_rl.engines.simulator import Simulator
from saecache_rl.envs import PrefixCacheEvictionEnv
from saecache_rl.predictor import OnlineLogistic, TurnCount
from saecache_rl.workloads.catalogue import make

trace = make("balanced", "requests=300")
num_blocks = auto_capacity(trace)
plain = (lru.LRU(), lfu.LFU(), unicache.UniCache(), saecache.SAECache(), optimum.Optimum())
peers = (fifo.FIFO(), slru.SLRU(), s3fifo.S3FIFO(), arc.ARC(), gdsf.GDSF(), lhd.LHD(), lecar.LeCaR())
peers += (tlru.TailOptimizedLRU(), workload_aware.WorkloadAware(), marconi.Marconi(), lpc.LPC())
for policy in (*plain, *peers, Hazard(), GuardedHazard()):
    simulator = Simulator(trace, policy, num_blocks)
    for predictor in (OnlineLogistic(), TurnCount()):
        predictor.continues(trace, simulator.sessions)
    simulator.serve(300)
env = PrefixCacheEvictionEnv(trace, num_blocks=num_blocks)
env.reset()
env.step(0)
ours = [d for d in gc.get_objects() if isinstance(d, Dispatcher) and d.__module__.startswith("saecache_rl")]
print(sum(sum(d.stats.cache_hits.values()) for d in ours), sum(sum(d.stats.cache_misses.values()) for d in ours))
"""


def test_a_second_process_finds_every_kernel_in_the_disk_cache() -> None:
    def counts() -> tuple[int, int]:
        result = subprocess.run(
            [sys.executable, "-c", RUN_EVERYTHING], capture_output=True, text=True, check=True, cwd=ROOT
        )
        hits, misses = result.stdout.split()
        return int(hits), int(misses)

    counts()
    hits, misses = counts()
    assert misses == 0
    assert hits > 40


@checkout
@pytest.mark.parametrize("name", LINKED)
def test_the_links_stand(name: str) -> None:
    link = ROOT / "saecache_rl" / name
    assert link.is_symlink()
    assert link.readlink() == Path("..") / name
    assert (ROOT / name).is_dir()


@pytest.mark.parametrize("name", LINKED)
def test_the_generic_names_are_not_importable_from_elsewhere(name: str) -> None:
    found = subprocess.run(
        [sys.executable, "-P", "-c", f"import importlib.util; print(importlib.util.find_spec({name!r}))"],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )
    assert found.stdout.strip() == "None"


@checkout
def test_a_wheel_holds_real_files_and_claims_one_name(tmp_path: Path) -> None:
    if importlib.util.find_spec("build") is None:
        pytest.skip("needs the package `build` (extra dev)")
    subprocess.run(
        [sys.executable, "-m", "build", "-q", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {n.split("/")[0] for n in names if ".dist-info" not in n} == {"saecache_rl"}
    for expected in ("py.typed", "envs/tuning.py", "envs/eviction.py", "agents/composite.py"):
        assert f"saecache_rl/{expected}" in names
    here = {str(p.relative_to(ROOT)) for p in (ROOT / "conf").rglob("*.yaml")}
    assert {n.removeprefix("saecache_rl/") for n in names if n.endswith(".yaml")} == here
