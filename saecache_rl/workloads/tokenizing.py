"""Text to tokens: with a model's own tokenizer where its file is given, else with a stand-in that says what it is.

A tokenizer here has ordinary text and, apart from it, markers: the special tokens of a chat template. Text that spells
a marker is ordinary text.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from saecache_rl.errors import InputError
from saecache_rl.workloads.templates import FORMATS

_REMEDY = (
    "give a model's tokenizer.json, or the folder that holds it, or words or characters (stand-ins that need no file)"
)
#: Markers are numbered below, text from here on.
_FIRST_TEXT = 256
#: Runs of text that are remembered; system prompts and tools come again and again.
_REMEMBERED = 4096
_CJK = "\u2e80-\u9fff\uac00-\ud7af"
_PIECES = re.compile(rf" ?[^\W\d_{_CJK}]{{1,6}}|[{_CJK}]|\d{{1,3}}|_+| ?[^\w\s]{{1,3}}|\n+|[^\S\n]+")
_MARKER_TEXTS = re.compile("|".join(sorted({re.escape(m.text) for f in FORMATS for m in f.markers}, reverse=True)))


class Encoded(NamedTuple):
    """Tokens of a text: ids (N,) and the character at which each begins (N,)."""

    ids: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]


class Tokenizer(ABC):
    """Encodes ordinary text, and knows its markers."""

    #: In results.
    name: str

    def __init__(self) -> None:
        self.encode = lru_cache(maxsize=_REMEMBERED)(self._encode)

    @abstractmethod
    def _encode(self, text: str) -> Encoded:
        """Encode ordinary text."""

    @abstractmethod
    def marker(self, text: str) -> int | None:
        """Return the id of the special token `text`, None where there is none."""

    @abstractmethod
    def texts(self, ids: npt.NDArray[np.int64]) -> list[str]:
        """Return the text of each token, for people to look at."""

    def ids(self, text: str) -> list[int]:
        """Return the ids of ordinary text as a list."""
        return [int(i) for i in self.encode(text).ids]


class _StandIn(Tokenizer):
    """Numbers pieces of text in the order in which it meets them."""

    def __init__(self) -> None:
        super().__init__()
        self._markers: dict[str, int] = {}
        self._numbers: dict[str, int] = {}

    def marker(self, text: str) -> int:
        """Return the number of a marker; there is one for every text."""
        return self._markers.setdefault(text, len(self._markers))

    def texts(self, ids: npt.NDArray[np.int64]) -> list[str]:
        """Return the text of each token that was met."""
        of = {n: text for text, n in self._markers.items()}
        of |= {n + _FIRST_TEXT: text for text, n in self._numbers.items()}
        return [of[int(i)] for i in ids]

    def _numbered(self, pieces: list[str]) -> npt.NDArray[np.int64]:
        numbers = self._numbers
        ids = [numbers.setdefault(piece, len(numbers)) for piece in pieces]
        return np.array(ids, np.int64) + _FIRST_TEXT


class Words(_StandIn):
    """Stand-in: words in parts of up to six letters, numbers of up to three digits, other signs in up to threes."""

    name = "words (stand-in: parts of words of up to 6 letters, some 4.5 characters a token in English)"

    def _encode(self, text: str) -> Encoded:
        pieces = _PIECES.findall(text)
        lengths = np.array([len(piece) for piece in pieces], np.int64)
        return Encoded(self._numbered(pieces), np.cumsum(lengths) - lengths)


class Characters(_StandIn):
    """Stand-in: every character is a token."""

    name = "characters (stand-in: every character is a token)"

    def _encode(self, text: str) -> Encoded:
        return Encoded(self._numbered(list(text)), np.arange(len(text)))


class HuggingFace(Tokenizer):
    """A model's tokenizer.json, read by Hugging Face's `tokenizers`."""

    def __init__(self, file: Path) -> None:
        """Read the file.

        Raises:
            InputError: `tokenizers` is not installed, or the file is not a tokenizer's.
        """
        super().__init__()
        try:
            from tokenizers import Tokenizer as Reader
        except ImportError:
            raise InputError(
                f"workload.tokenizer={file}: needs the package tokenizers: pip install tokenizers; or {_REMEDY}"
            ) from None
        try:
            self._reader: Any = Reader.from_file(str(file))
        except Exception as error:  # its Rust core raises a bare Exception for whatever the file holds
            raise InputError(f"workload.tokenizer={file}: no tokenizer ({str(error)[:80]}); {_REMEDY}") from None
        self._reader.encode_special_tokens = True
        self.name = f"{file.parent.name}/{file.name}"

    def marker(self, text: str) -> int | None:
        """Return the id of an added token."""
        number = self._reader.token_to_id(text)
        return None if number is None else int(number)

    def texts(self, ids: npt.NDArray[np.int64]) -> list[str]:
        """Return the text of each token; that of a part of a character is a replacement sign."""
        return [str(self._reader.decode([int(i)], skip_special_tokens=False)) for i in ids]

    def _encode(self, text: str) -> Encoded:
        # Added tokens that are not special (<think>) would be found in ordinary text; cut in two they are not.
        cuts = [0, *(found.start() + 1 for found in _MARKER_TEXTS.finditer(text)), len(text)]
        ids: list[int] = []
        starts: list[int] = []
        for begin, end in pairwise(cuts):
            encoding = self._reader.encode(text[begin:end], add_special_tokens=False)
            ids += encoding.ids
            starts += [begin + start for start, _ in encoding.offsets]
        return Encoded(np.array(ids, np.int64), np.array(starts, np.int64))


def find_tokenizer(value: object) -> Tokenizer:
    """Return the tokenizer that the option `workload.tokenizer` names: words, characters, or a file or its folder.

    Raises:
        InputError: there is none.
    """
    if value == "words":
        return Words()
    if value == "characters":
        return Characters()
    place = Path(str(value)).expanduser()
    file = place / "tokenizer.json" if place.is_dir() else place
    if value is None or not file.is_file():
        raise InputError(f"workload.tokenizer={value}: no such file; {_REMEDY}")
    return HuggingFace(file)
