"""Public workloads: what there is, under which licence, how large; fetched only when named.

    python scripts/download_data.py                        list, and fetch nothing
    python scripts/download_data.py mooncake azure --to data    fetch these
    python scripts/download_data.py mooncake --to data     go on with an interrupted one

A file is fetched to NAME.partial and moved when it is whole. Where the table has a checksum, it is checked; where it
has none, the one that was fetched is printed, to be kept with results. Files under a gate of their owner are not
fetched: what to do is printed.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

_CHUNK = 1 << 20
_TIMEOUT_SECONDS = 60


class File(NamedTuple):
    """One file: where it is, what it is called here, its size in bytes and SHA-256, None where not known."""

    url: str
    name: str
    size: int | None = None
    sha256: str | None = None


class Source(NamedTuple):
    """A public workload; `ask` says how to get one that is gated, made, or a whole repository."""

    workload: str
    licence: str
    home: str
    files: tuple[File, ...] = ()
    ask: str = ""


def _github(path: str) -> str:
    return f"https://raw.githubusercontent.com/{path}"


_HUGGING_FACE = (
    "make an account at huggingface.co, open the page above, accept its terms, then: pip install huggingface_hub; "
    "hf auth login; hf download --repo-type dataset"
)
SOURCES = {
    "mooncake": Source(
        "mooncake",
        "Apache-2.0",
        "https://github.com/kvcache-ai/Mooncake",
        (
            File(
                _github("kvcache-ai/Mooncake/main/FAST25-release/traces/conversation_trace.jsonl"),
                "conversation_trace.jsonl",
                3029533,
                "b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df",
            ),
            File(
                _github("kvcache-ai/Mooncake/main/FAST25-release/traces/toolagent_trace.jsonl"),
                "toolagent_trace.jsonl",
            ),
        ),
    ),
    "azure": Source(
        "azure",
        "CC-BY-4.0",
        "https://github.com/Azure/AzurePublicDataset",
        (
            File(
                _github("Azure/AzurePublicDataset/master/data/AzureLLMInferenceTrace_code.csv"),
                "AzureLLMInferenceTrace_code.csv",
                320117,
                "54e9a6d2a4bd06ba1e060304b900abbc74cbea53de96506e60fe5bb4f2277fb6",
            ),
            File(
                _github("Azure/AzurePublicDataset/master/data/AzureLLMInferenceTrace_conv.csv"),
                "AzureLLMInferenceTrace_conv.csv",
                719188,
                "2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8",
            ),
        ),
    ),
    "mt_bench_101": Source(
        "mt_bench_101",
        "Apache-2.0",
        "https://github.com/mtbench101/mt-bench-101",
        (
            File(
                _github("mtbench101/mt-bench-101/main/data/subjective/mtbench101.jsonl"),
                "mtbench101.jsonl",
                1875440,
                "1a1e433acf7e2ef013b5001b60fd8e48bc3e4202460727e25b2ea8575aae7d80",
            ),
        ),
    ),
    "llama_factory": Source(
        "llama_factory",
        "Apache-2.0",
        "https://github.com/hiyouga/LLaMA-Factory",
        (
            File(
                _github("hiyouga/LLaMA-Factory/main/data/reason_tool_use_demo_50.jsonl"),
                "reason_tool_use_demo_50.jsonl",
                258817,
                "6e1f0d3cbb8b0a6c73362bd42c33fa45256e7c8cb8ae74608ec7f9c6774b7e4e",
            ),
        ),
    ),
    "openassistant": Source(
        "openassistant",
        "Apache-2.0",
        "https://huggingface.co/datasets/OpenAssistant/oasst1",
        (
            File(
                "https://huggingface.co/datasets/OpenAssistant/oasst1/resolve/main/2023-04-12_oasst_ready.trees.jsonl.gz",
                "2023-04-12_oasst_ready.trees.jsonl.gz",
            ),
        ),
    ),
    "sharegpt": Source(
        "sharegpt",
        "Apache-2.0 as its page says; the texts are their writers'",
        "https://huggingface.co/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered",
        (
            File(
                "https://huggingface.co/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered/resolve/main/"
                "ShareGPT_V3_unfiltered_cleaned_split.json",
                "ShareGPT_V3_unfiltered_cleaned_split.json",
            ),
        ),
    ),
    "bailian": Source(
        "bailian",
        "Apache-2.0",
        "https://github.com/alibaba-edu/qwen-bailian-usagetraces-anon",
        (
            File(
                _github("alibaba-edu/qwen-bailian-usagetraces-anon/main/qwen_traceA_blksz_16.jsonl"),
                "qwen_traceA_blksz_16.jsonl",
            ),
        ),
    ),
    "burstgpt": Source(
        "burstgpt",
        "CC-BY-4.0",
        "https://github.com/HPMLL/BurstGPT",
        (File(_github("HPMLL/BurstGPT/main/data/BurstGPT_1.csv"), "BurstGPT_1.csv"),),
    ),
    "kv_cache_tester": Source(
        "kv_cache_tester",
        "Apache-2.0",
        "https://github.com/callanjfox/kv-cache-tester",
        ask="git clone --depth 1 https://github.com/callanjfox/kv-cache-tester; workload.path is its folder traces",
    ),
    "lmcache_agent": Source(
        "lmcache_agent",
        "Apache-2.0",
        "https://github.com/LMCache/lmcache-agent-trace",
        ask="git clone --depth 1 https://github.com/LMCache/lmcache-agent-trace; workload.path is a .jsonl in it",
    ),
    "tau_bench": Source(
        "tau_bench",
        "MIT",
        "https://github.com/sierra-research/tau-bench",
        ask="git clone --depth 1 https://github.com/sierra-research/tau-bench; workload.path is a file of "
        "historical_trajectories, workload.tools the clone",
    ),
    "bfcl": Source(
        "bfcl",
        "Apache-2.0",
        "https://github.com/ShishirPatil/gorilla",
        ask="git clone --depth 1 https://github.com/ShishirPatil/gorilla; workload.path is "
        "berkeley-function-call-leaderboard/bfcl_eval/data",
    ),
    "aiperf": Source(
        "aiperf",
        "Apache-2.0",
        "https://github.com/ai-dynamo/aiperf",
        ask="pip install aiperf; aiperf synthesize agentic-code --num-sessions 1000 --output DIR",
    ),
    "lmsys": Source(
        "lmsys",
        "LMSYS-Chat-1M licence agreement (gated)",
        "https://huggingface.co/datasets/lmsys/lmsys-chat-1m",
        ask=f"{_HUGGING_FACE} lmsys/lmsys-chat-1m",
    ),
    "chatbot_arena": Source(
        "chatbot_arena",
        "CC-BY-4.0 prompts, CC-BY-NC-4.0 replies (gated)",
        "https://huggingface.co/datasets/lmsys/chatbot_arena_conversations",
        ask=f"{_HUGGING_FACE} lmsys/chatbot_arena_conversations",
    ),
}


_HINTS = {
    401: "it is gated: its page says how to ask for access",
    403: "it is gated: its page says how to ask for access",
    404: "it has moved: look for it on its page",
    416: "what is there is longer than the file: delete the .partial file",
}


class FetchError(Exception):
    """A file could not be had; the message is for the user."""


def fetch(file: File, folder: Path) -> Path:
    """Fetch one file, going on where an earlier attempt stopped.

    Raises:
        FetchError: the server or the disk refuses, or what came is not what the table says.
    """
    target, partial = folder / file.name, folder / f"{file.name}.partial"
    version = folder / f"{file.name}.partial.version"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if target.exists():
            _check(file, target)
            print(f"{target}: there already")
            return target
        have = partial.stat().st_size if partial.exists() else 0
        if file.size is None or have < file.size:
            _receive(file, partial, version, have)
        _check(file, partial)
        partial.replace(target)
        version.unlink(missing_ok=True)
    except OSError as error:
        where = error.filename or partial
        raise FetchError(f"{where}: {error.strerror or error}; run the same command again to go on") from None
    return target


def _receive(file: File, partial: Path, version: Path, have: int) -> None:
    """Add to the partial file what it lacks; a file that has changed meanwhile is fetched anew.

    Args:
        file: what to fetch.
        partial: what is there of it.
        version: keeps which version of the file the server said that is, as only a checksum would show a mixture.
        have: bytes that are there.
    """
    since = version.read_text(encoding="utf-8") if have and version.exists() else ""
    headers = {"Accept-Encoding": "identity"}
    if have and (since or file.sha256):
        headers |= {"Range": f"bytes={have}-"} | ({"If-Range": since} if since else {})
    try:
        with urllib.request.urlopen(
            urllib.request.Request(file.url, headers=headers), timeout=_TIMEOUT_SECONDS
        ) as answer:
            if "html" in answer.headers.get("Content-Type", ""):
                raise FetchError(
                    f"{file.url}: the server sends a web page, not the file; is it gated, or has it moved?"
                )
            # A server that does not know ranges answers 200 and begins anew.
            begin = have if answer.status == 206 else 0
            if answer.status == 206 and not answer.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
                raise FetchError(f"{file.url}: the server sends another part than asked for; delete {partial}")
            if not begin:
                version.write_text(answer.headers.get("ETag", ""), encoding="utf-8")
            with partial.open("ab" if begin else "wb") as out:
                while chunk := _read(answer, file):
                    out.write(chunk)
            length = answer.headers.get("Content-Length")
            if length is not None and partial.stat().st_size < begin + int(length):
                raise FetchError(_early(file))
    except urllib.error.HTTPError as error:
        error.close()
        whole = error.code == 416 and error.headers.get("Content-Range", "") in ("", f"bytes */{have}")
        if not (whole and have):
            hint = _HINTS.get(error.code, "nothing is lost, try again later")
            raise FetchError(f"{file.url}: the server answers {error.code}; {hint}") from None
    except (urllib.error.URLError, http.client.HTTPException) as error:
        raise FetchError(
            f"{file.url}: {getattr(error, 'reason', error)}; run the same command again to go on"
        ) from None


def _read(answer: http.client.HTTPResponse, file: File) -> bytes:
    try:
        return answer.read(_CHUNK)
    except (OSError, http.client.HTTPException):
        raise FetchError(_early(file)) from None


def _early(file: File) -> str:
    return f"{file.url}: the connection ended early; run the same command again to go on"


def _check(file: File, path: Path) -> None:
    digest = hashlib.sha256()
    with path.open("rb") as content:
        while chunk := content.read(_CHUNK):
            digest.update(chunk)
    size = path.stat().st_size
    if file.sha256 is None:
        print(f"{path}: {size:,} bytes, SHA-256 {digest.hexdigest()} (no checksum to compare with)")
    elif digest.hexdigest() != file.sha256:
        raise FetchError(
            f"{path}: {size:,} bytes, SHA-256 {digest.hexdigest()}, expected {file.size:,} bytes, {file.sha256}; "
            "delete it and fetch it again; if it stays so, the source has changed"
        )
    else:
        print(f"{path}: {size:,} bytes, checksum right")


def list_sources() -> None:
    """Print the table."""
    for name, source in SOURCES.items():
        print(f"{name}\n  licence  {source.licence}\n  home     {source.home}")
        for file in source.files:
            size = "size not known" if file.size is None else f"{file.size:,} bytes"
            print(f"  file     {file.name}, {size}, {'checksum known' if file.sha256 else 'no checksum'}")
        if source.ask:
            print(f"  get it   {source.ask}")
    print("\nNothing was fetched. Name what to fetch: python scripts/download_data.py NAME … --to FOLDER")


def main(arguments: list[str] | None = None) -> int:
    """List, or fetch what is named; the exit code is 0, 1 where a fetch failed, 2 for a mistake or a gated source."""
    parser = argparse.ArgumentParser(description="Fetch public workloads, only those that are named.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="as the list shows them; none: list, fetch nothing")
    parser.add_argument("--to", type=Path, help="folder to fetch into; it is made")
    options = parser.parse_args(arguments)
    if not options.names:
        list_sources()
        return 0
    unknown = [name for name in options.names if name not in SOURCES]
    if unknown or options.to is None:
        what = f"{unknown[0]}: unknown; known: {', '.join(SOURCES)}" if unknown else "give the folder: --to FOLDER"
        print(f"download_data: {what}", file=sys.stderr)
        return 2
    code = 0
    for name in options.names:
        source = SOURCES[name]
        if not source.files:
            print(f"{name} ({source.home}, {source.licence}) is not fetched from here: {source.ask}", file=sys.stderr)
            code = max(code, 2)
            continue
        for file in source.files:
            try:
                print(f"{fetch(file, options.to)}: {source.licence}; use it with +workload={source.workload}")
            except FetchError as error:
                print(f"download_data: {error} ({source.home})", file=sys.stderr)
                code = max(code, 1)
            except KeyboardInterrupt:
                print("download_data: interrupted; run the same command again to go on", file=sys.stderr)
                return 130
    return code


if __name__ == "__main__":
    sys.exit(main())
