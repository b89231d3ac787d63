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
    """Serves `content` at /file, and at other paths what a server or a network may do to it."""

    asked: list[str | None]
    ranges: bool
    content = CONTENT
    tag = '"one"'

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        type(self).asked.append(asked)
        content = self.content
        how = self.path.strip("/")
        start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and self.ranges else 0  # type: ignore[index]
        if how.isdigit():
            self.send_error(int(how))
        elif how == "moved":
            self.send_response(302)
            self.send_header("Location", "/file")
            self.end_headers()
        elif how == "loop":
            self.send_response(302)
            self.send_header("Location", "/loop")
            self.end_headers()
        elif how == "page":
            self.send(b"<html>log in</html>", kind="text/html; charset=utf-8")
        elif how == "short":
            self.send(content, cut=len(content) // 2)
        elif how == "chunked":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"ff\r\n" + content[:100])
        elif how == "gone":
            self.connection.close()
        elif start and self.headers.get("If-Range", self.tag) == self.tag:
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
            else:
                self.send(
                    content[start:], part=f"bytes {start if how == 'file' else 7}-{len(content) - 1}/{len(content)}"
                )
        else:
            self.send(content)

    def send(
        self, content: bytes, part: str = "", kind: str = "application/octet-stream", cut: int | None = None
    ) -> None:
        self.send_response(206 if part else 200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Type", kind)
        self.send_header("ETag", self.tag)
        if part:
            self.send_header("Content-Range", part)
        self.end_headers()
        self.wfile.write(content[:cut])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    Handler.asked, Handler.ranges = [], True
    Handler.content, Handler.tag = CONTENT, '"one"'
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler)) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
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
        download.fetch(file(server)._replace(name="g", url=f"{server}/404"), tmp_path)  # type: ignore[attr-defined]


@pytest.mark.parametrize("known", [True, False], ids=["checksum known", "no checksum"])
@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("404", "answers 404; it has moved"),
        ("403", "answers 403; it is gated"),
        ("401", "answers 401; it is gated"),
        ("503", "answers 503; nothing is lost"),
        ("loop", "answers 302"),
        ("page", "sends a web page, not the file"),
        ("short", "ended early; run the same command again"),
        ("chunked", "ended early; run the same command again"),
        ("gone", "run the same command again"),
    ],
)
def test_what_a_server_may_do_is_one_line_and_no_file(
    server: str, tmp_path: Path, path: str, says: str, known: bool
) -> None:
    wanted = file(server)._replace(url=f"{server}/{path}")  # type: ignore[attr-defined]
    if not known:
        wanted = wanted._replace(size=None, sha256=None)
    with pytest.raises(download.FetchError, match=says) as caught:
        download.fetch(wanted, tmp_path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "f.bin").exists()


def test_a_connection_that_ends_early_is_gone_on_with(server: str, tmp_path: Path) -> None:
    with pytest.raises(download.FetchError):
        download.fetch(file(server)._replace(url=f"{server}/short"), tmp_path)  # type: ignore[attr-defined]
    half = len(CONTENT) // 2
    assert (tmp_path / "f.bin.partial").read_bytes() == CONTENT[:half]
    assert download.fetch(file(server), tmp_path).read_bytes() == CONTENT
    assert Handler.asked == [None, f"bytes={half}-"]
    assert [p.name for p in tmp_path.iterdir()] == ["f.bin"]


def test_a_redirection_is_followed(server: str, tmp_path: Path) -> None:
    wanted = file(server)._replace(url=f"{server}/moved")  # type: ignore[attr-defined]
    (tmp_path / "f.bin.partial").write_bytes(CONTENT[:1000])
    assert download.fetch(wanted, tmp_path).read_bytes() == CONTENT
    assert Handler.asked == ["bytes=1000-", "bytes=1000-"]


def test_a_file_without_checksum_that_has_changed_is_not_mixed(server: str, tmp_path: Path) -> None:
    wanted = file(server)._replace(size=None, sha256=None)  # type: ignore[attr-defined]
    with pytest.raises(download.FetchError):
        download.fetch(wanted._replace(url=f"{server}/short"), tmp_path)
    Handler.content, Handler.tag = CONTENT[::-1], '"two"'
    assert download.fetch(wanted, tmp_path).read_bytes() == CONTENT[::-1]
    (tmp_path / "f.bin").unlink()
    (tmp_path / "f.bin.partial").write_bytes(CONTENT[:1000])  # of a version that is not known
    assert download.fetch(wanted, tmp_path).read_bytes() == CONTENT[::-1]


def test_another_part_than_asked_for_is_not_added(server: str, tmp_path: Path) -> None:
    (tmp_path / "f.bin.partial").write_bytes(CONTENT[:1000])
    with pytest.raises(download.FetchError, match="another part than asked for; delete"):
        download.fetch(file(server)._replace(url=f"{server}/shifted"), tmp_path)  # type: ignore[attr-defined]
    assert (tmp_path / "f.bin.partial").read_bytes() == CONTENT[:1000]


def test_more_is_there_than_the_server_has(server: str, tmp_path: Path) -> None:
    (tmp_path / "f.bin.partial").write_bytes(CONTENT + b"x")
    (tmp_path / "f.bin.partial.version").write_text('"one"')
    with pytest.raises(download.FetchError, match=r"delete the \.partial file"):
        download.fetch(file(server)._replace(size=None, sha256=None), tmp_path)  # type: ignore[attr-defined]
    with pytest.raises(download.FetchError, match="delete it and fetch it again"):
        download.fetch(file(server), tmp_path)
    assert not (tmp_path / "f.bin").exists()


def test_a_full_disk_and_a_folder_that_is_a_file(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(download.FetchError, match="taken: "):
        download.fetch(file(server), tmp_path / "taken")
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    (tmp_path / "f.bin.partial").symlink_to("/dev/full")
    with pytest.raises(download.FetchError, match="No space left on device; run the same command again"):
        download.fetch(file(server), tmp_path)
    monkeypatch.setitem(download.SOURCES, "mooncake", download.SOURCES["mooncake"]._replace(files=(file(server),)))
    assert download.main(["mooncake", "--to", str(tmp_path)]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "f.bin").exists()


def test_no_server_at_all(tmp_path: Path) -> None:
    nothing = download.File("http://127.0.0.1:9/file", "f.bin")
    with pytest.raises(download.FetchError, match="run the same command again"):
        download.fetch(nothing, tmp_path)


def test_an_interrupt_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(download.urllib.request, "urlopen", interrupted)
    assert download.main(["mooncake", "--to", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "download_data: interrupted; run the same command again to go on\n"


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
