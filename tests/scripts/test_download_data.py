"""The download script against a server of our own: it lists, goes on, checks, and fetches nothing unasked."""

from __future__ import annotations

import functools
import hashlib
import http.server
import importlib.util
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from saecache_rl.workloads.catalogue import names

CONTENT = bytes(range(256)) * 300


def module() -> ModuleType:
    path = Path(__file__).parents[2] / "scripts" / "download_data.py"
    spec = importlib.util.spec_from_file_location("download_data", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


download = module()


class Handler(http.server.BaseHTTPRequestHandler):
    asked: list[str | None]
    ranges: bool

    def do_GET(self) -> None:
        type(self).asked.append(self.headers.get("Range"))
        start = 0
        if self.headers.get("Range") and self.ranges:
            start = int(re.fullmatch(r"bytes=(\d+)-", self.headers["Range"])[1])  # type: ignore[index]
        if self.path != "/file":
            self.send_error(404)
            return
        if start >= len(CONTENT):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        self.wfile.write(CONTENT[start:])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    Handler.asked, Handler.ranges = [], True
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler)) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def file(server: str, right: bool = True) -> object:
    digest = hashlib.sha256(CONTENT if right else b"").hexdigest()
    return download.File(f"{server}/file", "f.bin", len(CONTENT), digest)


def test_a_file_is_fetched_and_checked(server: str, tmp_path: Path) -> None:
    assert download.fetch(file(server), tmp_path).read_bytes() == CONTENT
    assert [p.name for p in tmp_path.iterdir()] == ["f.bin"]
    download.fetch(file(server), tmp_path)
    assert len(Handler.asked) == 1


@pytest.mark.parametrize("ranges", [True, False])
def test_an_interrupted_one_goes_on(server: str, tmp_path: Path, ranges: bool) -> None:
    Handler.ranges = ranges
    (tmp_path / "f.bin.partial").write_bytes(CONTENT[:1000])
    assert download.fetch(file(server), tmp_path).read_bytes() == CONTENT
    assert Handler.asked == ["bytes=1000-"]


def test_all_of_it_was_there_but_its_name(server: str, tmp_path: Path) -> None:
    (tmp_path / "f.bin.partial").write_bytes(CONTENT)
    unknown_size = file(server)._replace(size=None)  # type: ignore[attr-defined]
    assert download.fetch(unknown_size, tmp_path).read_bytes() == CONTENT


def test_what_is_not_as_the_table_says_is_refused(server: str, tmp_path: Path) -> None:
    with pytest.raises(download.FetchError, match="expected 76,800 bytes"):
        download.fetch(file(server, right=False), tmp_path)
    assert not (tmp_path / "f.bin").exists()
    with pytest.raises(download.FetchError, match="answers 404"):
        download.fetch(file(server)._replace(name="g", url=f"{server}/other"), tmp_path)  # type: ignore[attr-defined]


def test_nothing_is_fetched_unasked(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download.urllib.request, "urlopen", lambda *_, **__: pytest.fail("a request was made"))
    assert download.main([]) == 0
    listed = capsys.readouterr().out
    assert "Nothing was fetched" in listed
    for name in download.SOURCES:
        assert name in listed


def test_gated_sources_say_how_to_ask(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert download.main(["lmsys", "--to", str(tmp_path / "x")]) == 2
    assert "accept its terms" in capsys.readouterr().err
    assert download.main(["mooncake"]) == 2
    assert "--to FOLDER" in capsys.readouterr().err
    assert download.main(["moon", "--to", "x"]) == 2
    assert "unknown; known: mooncake" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_every_source_is_a_workload() -> None:
    for source in download.SOURCES.values():
        assert source.workload in names()
        assert bool(source.files) != bool(source.ask)
        for entry in source.files:
            assert entry.sha256 is None or re.fullmatch("[0-9a-f]{64}", entry.sha256)
            assert (entry.size is None) == (entry.sha256 is None)
