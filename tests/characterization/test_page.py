"""The report as a page: whole HTML that needs no network, whatever the names and notes hold."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from saecache_rl.characterization.figures import draw, panels
from saecache_rl.characterization.findings import Captions, captions, duration, findings, percent
from saecache_rl.characterization.gaps import LogNormal
from saecache_rl.characterization.measured import Measured, measure
from saecache_rl.characterization.page import write_page
from saecache_rl.vocabulary import TokenType
from tests.support import TraceBuilder, tiny_trace

HOSTILE = "<script>alert('x')</script> & \"quotes\" [red]"


class Tags(HTMLParser):
    """Follows the open tags of a page; what is opened must be closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        self.text += data


def written(measured: Measured, folder: Path, pictures: bool = True) -> Tags:
    write_page(measured, panels(measured) if pictures else [], folder / "report.html")
    page = Tags()
    page.feed((folder / "report.html").read_text(encoding="utf-8"))
    page.close()
    assert not page.open
    return page


def some() -> Measured:
    return measure(tiny_trace(requests=150), "auto")


def one_request() -> Measured:
    builder = TraceBuilder(block_size=4)
    builder.request(0.0, [(n, TokenType.USER) for n in range(3)], [(9, TokenType.RESPONSE)], 0, 0)
    return measure(builder.trace("short"), "auto")


@pytest.mark.parametrize("measured", [some(), one_request()], ids=["usual", "one request without a full block"])
def test_the_page_is_whole_and_needs_no_network(measured: Measured, tmp_path: Path) -> None:
    page = written(measured, tmp_path)
    pictures = [of for tag, of in page.seen if tag == "img"]
    said = captions(measured)
    assert len(pictures) == len(said) == 6
    for of, sentence in zip(pictures, said, strict=True):
        assert (of["src"] or "").startswith("data:image/png;base64,")
        assert (of["alt"] or "").endswith(sentence)
        assert sentence in page.text
    for tag, attributes in page.seen:
        assert tag not in ("script", "link", "iframe")
        assert not [value for value in attributes.values() if value and "//" in value and "base64" not in value]
    assert ("viewport", "width=device-width, initial-scale=1") in [
        (of.get("name"), of.get("content")) for tag, of in page.seen if tag == "meta"
    ]
    for text in findings(measured):
        assert text in page.text
    without = written(measured, tmp_path, pictures=False)
    assert not any(tag in ("img", "figure") for tag, _ in without.seen)
    draw(measured, tmp_path / "all.png")
    assert (tmp_path / "all.png").read_bytes()[:4] == b"\x89PNG"


def test_names_and_notes_are_text(tmp_path: Path) -> None:
    page = written(replace(some(), name=HOSTILE, notes={HOSTILE: HOSTILE}), tmp_path)
    assert page.text.count(HOSTILE) == 4  # title, heading, and both cells of the note
    assert not any(tag in ("script", "red") for tag, _ in page.seen)


def test_both_treatments_of_gaps_of_no_length_are_shown(tmp_path: Path) -> None:
    measured = some()
    law = LogNormal(1.25, 0.75, (1.125, 1.5), (0.5, 1.0))
    gap = measured.gaps[0]._replace(zero=17, above_zero=law, floored=law._replace(mu=0.875))
    page = written(replace(measured, gaps=[gap]), tmp_path, pictures=False)
    assert "1.25 [1.12, 1.50]" in page.text
    assert "0.88 [1.12, 1.50]" in page.text
    assert ">17<" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (1, 2, "50.0 %"),
        (0, 9, "0.0 %"),
        (9, 9, "100.0 %"),
        (9999, 10_000, "99.99 %"),
        (1, 5000, "0.02 %"),
        (1, 10**7, "below 0.01 %"),
        (10**7 - 1, 10**7, "above 99.99 %"),
        (0, 0, "-"),
    ],
)
def test_shares_are_not_rounded_to_all_or_nothing(part: int, whole: int, text: str) -> None:
    assert percent(part, whole) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.0 ms"),
        (0.25, "250 ms"),
        (1.5, "1.5 s"),
        (119, "119 s"),
        (120, "2.0 min"),
        (7200, "2.0 h"),
        (2e5, "2.3 days"),
    ],
)
def test_times_have_a_unit_that_suits_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_captions_name_what_is_there() -> None:
    said = captions(one_request())
    assert said == Captions(
        types="No prompt has a full block.",
        offsets="No prompt has a full block.",
        gaps="Too few gaps to fit a distribution.",
        answers="No session has a second request after a pause.",
        turns="The one session has 1 request.",
        matches="There is no full block.",
    )
    usual = some()
    counts = usual.reuse
    assert captions(usual).offsets.startswith(
        f"Of the prompts' first blocks {percent(counts.offset_hits[0], counts.offset_accesses[0])} are matched"
    )
    never = counts.reuse_counts[0] / counts.reuse_counts.sum()
    assert captions(usual).matches.startswith(percent(never))
    assert f"{int(np.max(usual.turns)):,}" in captions(usual).turns
