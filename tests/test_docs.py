"""Every command and example of the README and of docs/ runs as it stands there."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workloads.samples import SAMPLES

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(language: str) -> list[tuple[str, str]]:
    """(page and number, text) of every block of a language; the README's first two run elsewhere."""
    found = []
    for page in PAGES:
        texts = re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M)
        for number, text in enumerate(texts, 1):
            if language == "bash" and page.name == "README.md" and number <= 2:
                continue
            found.append((f"{page.name}-{number}", text))
    return found


def test_the_readme_starts_with_the_two_commands() -> None:
    texts = re.findall(r"^```bash\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S | re.M)
    assert "pip install" in texts[0]
    assert "saecache_rl.train +workload=agentic_shift" in texts[0]
    assert "pip install" in texts[1]
    assert "pytest" in texts[1]


def provide_traces(folder: Path) -> None:
    """Put the public traces where the commands look for them, under their upstream names."""
    data = os.environ.get("SAECACHE_DATA_DIR")
    if not data:
        pytest.skip("needs the public traces: set SAECACHE_DATA_DIR to the folder that holds them")
    packed = Path(data) / "mooncake" / "conversation_trace.jsonl.gz"
    (folder / "conversation_trace.jsonl").write_bytes(gzip.decompress(packed.read_bytes()))
    unpack = Path(data) / "unpack-kv-cache-tester"
    subprocess.run([sys.executable, str(unpack), str(folder / "unpacked"), "40"], check=True)
    shutil.move(folder / "unpacked" / "traces", folder / "traces")
    for name in (
        "lmcache_agent_trace/miniswe.jsonl.gz",
        "tau_bench/gpt-4o-airline.jsonl.gz",
        "tau_bench/env_tools_wiki.tar.xz",
        "llama_factory/reason_tool_use_demo_50.jsonl.gz",
        "bfcl/bfcl_v4_multi_turn.tar.xz",
        "mt_bench_101/mtbench101.jsonl.gz",
        "openassistant/en_100_tree.jsonl.gz",
        "azure_llm_2023/AzureLLMInferenceTrace_conv.csv.gz",
    ):
        (folder / Path(name).name).symlink_to(Path(data).absolute() / name)
    # Formats of which there is no public file here: a few requests each.
    for workload, file in (
        ("sharegpt", "ShareGPT_V3_unfiltered_cleaned_split.json"),
        ("lmsys", "lmsys-chat-1m.jsonl"),
        ("chatbot_arena", "chatbot_arena.jsonl"),
        ("openai_messages", "requests.jsonl"),
        ("bailian", "qwen_traceA_blksz_16.jsonl"),
        ("burstgpt", "BurstGPT_1.csv"),
        ("aiperf", "dataset.jsonl"),
    ):
        (folder / file).write_text(SAMPLES[workload].content, encoding="utf-8")


@pytest.mark.parametrize(("name", "text"), blocks("bash"), ids=[name for name, _ in blocks("bash")])
def test_commands_run(name: str, text: str, tmp_path: Path) -> None:
    if "workload.path=" in text:
        provide_traces(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, f"{name}:\n{result.stdout}\n{result.stderr}"


@pytest.mark.parametrize(("name", "text"), blocks("python"), ids=[name for name, _ in blocks("python")])
def test_examples_run(name: str, text: str, tmp_path: Path) -> None:
    # Compiled functions are kept beside their source, so that the example needs a file.
    (tmp_path / "example.py").write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, f"{name}:\n{result.stdout}\n{result.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_inside_the_repository_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
