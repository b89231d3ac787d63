"""The public traces themselves: sizes and ceilings as measured on them elsewhere."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from saecache_rl.workloads.catalogue import make
from saecache_rl.workloads.sessions import hint, lineage
from tests.workloads.naive import hit_blocks
from tests.workloads.test_sessions import precision_and_recall

_FOLDER = os.environ.get("SAECACHE_DATA_DIR")
pytestmark = pytest.mark.skipif(not _FOLDER, reason="SAECACHE_DATA_DIR is not set: the folder of public traces")
DATA = Path(_FOLDER or ".")


def test_mooncake_conversation() -> None:
    trace = make("mooncake", f"path='{DATA / 'mooncake' / 'conversation_trace.jsonl.gz'}'")
    assert trace.num_requests == 12_031
    assert trace.notes["malformed_lines"] == "0"
    assert hit_blocks(trace) / trace.matchable_blocks.sum() == pytest.approx(0.382, abs=0.0005)
    # Turns inferred by lineage, as measured independently: ln seconds 4.89 and 0.97.
    gaps = lineage(trace).gap_seconds
    logs = np.log(gaps[gaps > 0])
    assert logs.mean() == pytest.approx(4.89, abs=0.03)
    assert logs.std() == pytest.approx(0.97, abs=0.03)


def test_claude_code_sessions(tmp_path: Path) -> None:
    unpack = DATA / "unpack-kv-cache-tester"
    if not unpack.is_file():
        pytest.skip("SAECACHE_DATA_DIR has no unpack-kv-cache-tester")
    subprocess.run([str(unpack), str(tmp_path), "60"], check=True, capture_output=True)
    trace = make("kv_cache_tester", f"path='{tmp_path}'")
    assert trace.notes["malformed_files"] == trace.notes["malformed_requests"] == "0"
    assert 0.94 < hit_blocks(trace) / trace.matchable_blocks.sum() < 0.99
    assert set(np.unique(trace.token_type)) == set(range(6))
    precision, recall = precision_and_recall(trace)
    assert precision > 0.99
    assert recall > 0.85
    assert np.array_equal(hint(trace).turn, trace.turn)
