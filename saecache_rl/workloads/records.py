"""Reading what users bring: plain or gzip, whole files or lines, with one policy for what is malformed.

Blank lines, a byte-order mark, CRLF and aliases of field names are read. A malformed record is skipped, counted and
named; more than one in a hundred is an error.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from saecache_rl.errors import InputError

#: The part of the records that may be malformed.
TOLERATED = 0.01
#: Tokens of a prompt or a reply beyond which a number is a mistake; no model takes nearly as many.
_LARGEST = 2**24
_NAMED = 5  # malformed records named in full in a note


class BadRecordError(ValueError):
    """A record is not in the format; says what was expected."""


class Malformed:
    """Counts the malformed records of one source, and says where they stand."""

    def __init__(self, source: str, expected: str, remedy: str) -> None:
        """Start at none.

        Args:
            source: the file or folder, for messages.
            expected: a record of the format.
            remedy: how to get the data.
        """
        self.source, self.expected, self.remedy = source, expected, remedy
        self.records = 0
        self.places: list[str] = []
        self.first = ""

    def add(self, place: str, reason: object) -> None:
        """Count one malformed record at `place`, for instance ``line 7``."""
        self.first = self.first or f"{place}: {reason}"
        self.places.append(place)

    def check(self) -> None:
        """Raise InputError where more than one record in a hundred, or every one, is malformed or there are none."""
        if not self.records:
            raise InputError(f"{self.source}: empty; expected {self.expected}; {self.remedy}")
        if len(self.places) > TOLERATED * self.records:
            raise InputError(
                f"{self.source}: {self.first} ({len(self.places)} of {self.records} records are malformed); "
                f"expected {self.expected}; {self.remedy}"
            )

    def note(self) -> str:
        """Return the count and the places, for `Trace.notes`."""
        if not self.places:
            return "0"
        more = f" and {len(self.places) - _NAMED} more" if len(self.places) > _NAMED else ""
        return f"{len(self.places)} ({', '.join(self.places[:_NAMED])}{more}; first: {self.first})"


def find(path: object, remedy: str) -> Path:
    """Return the path that an option gives.

    Raises:
        InputError: it is not given, nothing is there, or it is a folder that can't be read.
    """
    if path is None or not str(path).strip():
        raise InputError(f"workload.path={path}: missing; {remedy}")
    place = Path(str(path))  # a name of digits arrives as a number
    try:
        place = place.expanduser()
        exists = place.exists()
        if exists and place.is_dir():
            with os.scandir(place) as entries:
                for entry in entries:
                    entry.stat(follow_symlinks=False)  # a folder may be listed and yet not be entered
                    break
    except (OSError, ValueError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{place}: not readable ({reason or error}); {remedy}") from None
    if not exists:
        raise InputError(f"{place}: no such file or folder; {remedy}")
    return place


def files_below(folder: Path, suffixes: tuple[str, ...], remedy: str) -> list[Path]:
    """Return the files in a folder and its folders, by name, links to folders not followed.

    Raises:
        InputError: one of the folders can't be read.
    """

    def refuse(error: OSError) -> None:
        raise InputError(f"{error.filename}: not readable ({error.strerror}); {remedy}")

    found = []
    for at, _, names in os.walk(folder, onerror=refuse):
        found += [Path(at) / name for name in names if name.endswith(suffixes)]
    return sorted(path for path in found if path.is_file())


def read_bytes(file: Path, remedy: str) -> bytes:
    """Return the content of a file, unpacked where it is gzip.

    Raises:
        InputError: it is a folder, unreadable, damaged, or is named .gz and is not gzip.
    """
    if file.is_dir():
        raise InputError(f"{file}: a folder, expected a file; {remedy}")
    try:
        content = file.read_bytes()
        if content[:2] == b"\x1f\x8b":
            return gzip.decompress(content)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{file}: a damaged gzip file ({error}); fetch it again: {remedy}") from None
    except OSError as error:
        raise InputError(f"{file}: not readable ({error.strerror or error}); {remedy}") from None
    if file.suffix == ".gz" and content:
        raise InputError(f"{file}: not a gzip file, though its name says so; fetch it again: {remedy}")
    return content


def lines(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (number from 1, line) of every line that is not blank; a byte-order mark is dropped."""
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        stripped = line.strip()
        if stripped:
            yield number, stripped


def parse(content: bytes) -> dict[str, Any]:
    """Return a JSON object.

    Raises:
        BadRecordError: it is anything else.
    """
    try:
        record = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise BadRecordError(f"not JSON ({str(error)[:80]})") from None
    if not isinstance(record, dict):
        raise BadRecordError("not a JSON object")
    return record


def pick(record: Mapping[str, Any], *names: str) -> Any:
    """Return the value of the first of `names`, a field and its aliases, that the record has."""
    for name in names:
        if name in record:
            return record[name]
    raise BadRecordError(f"no field {names[0]}")


def count(record: Mapping[str, Any], *names: str, least: int = 0) -> int:
    """Return a field that is a whole number of tokens, at least `least`."""
    value = pick(record, *names)
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _LARGEST:
        raise BadRecordError(f"{names[0]} is {str(value)[:40]}, expected a whole number from {least} to {_LARGEST}")
    return value


def seconds(record: Mapping[str, Any], *names: str, scale: float = 1.0) -> float:
    """Return a field that is a time, not negative, divided by `scale` (1000 for milliseconds)."""
    value = pick(record, *names)
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1e15
    if not good:
        raise BadRecordError(f"{names[0]} is {str(value)[:40]}, expected a time that is not negative")
    return float(value) / scale


def block_ids(record: Mapping[str, Any], *names: str, largest: int) -> npt.NDArray[np.int64]:
    """Return a field that is a list of block ids from 0 to `largest`."""
    value = pick(record, *names)
    if not isinstance(value, list):
        raise BadRecordError(f"{names[0]} is no list")
    try:
        ids = np.array(value, dtype=np.int64) if value else np.empty(0, np.int64)
    except (ValueError, TypeError, OverflowError):
        raise BadRecordError(f"{names[0]} holds something other than block ids") from None
    if ids.ndim != 1 or (len(ids) and not 0 <= ids.min() <= ids.max() <= largest):
        raise BadRecordError(f"{names[0]} holds something other than block ids")
    if len(ids) and not all(type(v) is int for v in value):
        raise BadRecordError(f"{names[0]} holds something other than whole numbers")
    return ids


def text_count(record: Mapping[str, Any], name: str, least: int = 0) -> int:
    """Return a field of a table, a text that is a whole number of tokens, at least `least`."""
    text = str(pick(record, name))
    try:
        return count({name: float(text)}, name, least=least)
    except (ValueError, OverflowError):
        raise BadRecordError(f"{name} is {text[:40]!r}, expected a whole number from {least} on") from None
