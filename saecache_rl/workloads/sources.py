"""Where records come from: a file, a folder or an archive of them; JSON lines, a JSON list, CSV or Parquet."""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from saecache_rl.errors import InputError
from saecache_rl.workloads.records import BadRecordError, Malformed, files_below, find, lines, parse, read_bytes

#: Of files that a folder or an archive may hold.
JSON_SUFFIXES = (".json", ".jsonl", ".json.gz", ".jsonl.gz")
TABLE_SUFFIXES = (*JSON_SUFFIXES, ".parquet")
_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2")


class Source(NamedTuple):
    """One file: its path as it is shown, its content, unpacked, and what precedes places in it in messages."""

    name: str
    content: bytes
    prefix: str = ""


class Record(NamedTuple):
    """One record and where it stands."""

    place: str
    fields: dict[str, Any]


class Text(NamedTuple):
    """What a loader tells of its format, for messages."""

    expected: str
    remedy: str


def is_archive(path: Path) -> bool:
    """The name is that of a tar archive."""
    return path.name.endswith(_ARCHIVES)


def open_sources(
    path: object, suffixes: tuple[str, ...], remedy: str, wanted: Callable[[str], bool] = lambda _: True
) -> list[Source]:
    """Return the files at a path: itself, or those inside a folder or a tar archive, by name.

    Args:
        path: the option workload.path.
        suffixes: of the files that count in a folder or an archive; none: the path must be a file.
        remedy: how to get the data.
        wanted: says by its path whether a file in a folder or an archive counts.

    Raises:
        InputError: there is none, or it can't be read.
    """
    place = find(path, remedy)
    if not suffixes:
        return [Source(str(place), read_bytes(place, remedy))]
    if place.is_dir():
        names = [(str(p.relative_to(place)), p) for p in files_below(place, suffixes, remedy)]
        found = [
            _inside(n, read_bytes(p, remedy)) for n, p in names if wanted(str(p)) and n[0] != "." and "/." not in n
        ]
    elif is_archive(place):
        found = _members(place, suffixes, remedy, wanted)
    else:
        return [Source(str(place), read_bytes(place, remedy))]
    if not found:
        raise InputError(f"{place}: no file in it that is wanted ({', '.join(suffixes)}); {remedy}")
    return found


def _inside(name: str, content: bytes) -> Source:
    """A file of several, gzip unpacked, as those of an archive may be."""
    if content[:2] == b"\x1f\x8b":
        content = gzip.decompress(content)
    return Source(name, content, f"{name} ")


def _members(archive: Path, suffixes: tuple[str, ...], remedy: str, wanted: Callable[[str], bool]) -> list[Source]:
    found = []
    try:
        with tarfile.open(archive, "r:*") as tar:
            for member in tar:
                if member.isfile() and member.name.endswith(suffixes) and wanted(member.name):
                    file = tar.extractfile(member)
                    assert file is not None
                    found.append(_inside(member.name, file.read()))
    except (tarfile.TarError, lzma.LZMAError, EOFError, OSError, zlib.error) as error:
        raise InputError(f"{archive}: a damaged archive ({str(error)[:80]}); fetch it again: {remedy}") from None
    return sorted(found)


def records_of(source: Source, malformed: Malformed) -> Iterator[Record]:
    """Yield the records of a file: Parquet rows, the objects of a JSON list or of JSON lines.

    Counts every record in `malformed`, and adds those that are not objects.

    Raises:
        InputError: a JSON list or a Parquet file that can't be read as a whole.
    """
    content = source.content.removeprefix(b"\xef\xbb\xbf")
    if content[:4] == b"PAR1" or source.name.endswith(".parquet"):
        yield from _parquet(source, malformed)
        return
    whole = _whole(source, content, malformed)
    if whole is not None:
        for n, fields in enumerate(whole):
            malformed.records += 1
            if isinstance(fields, dict):
                yield Record(f"{source.prefix}record {n}", fields)
            else:
                malformed.add(f"{source.prefix}record {n}", "not a JSON object")
        return
    for number, line in lines(content):
        malformed.records += 1
        try:
            yield Record(f"{source.prefix}line {number}", parse(line))
        except BadRecordError as problem:
            malformed.add(f"{source.prefix}line {number}", problem)


def _whole(source: Source, content: bytes, malformed: Malformed) -> list[Any] | None:
    """Return the entries of a file that is one JSON list or one JSON object of several lines; None: JSON lines."""
    start = content.lstrip()[:1]
    if start == b"{":
        first = content.lstrip().split(b"\n", 1)[0]
        try:
            json.loads(first)
            return None
        except (ValueError, RecursionError):
            try:
                return [json.loads(content)]
            except (ValueError, RecursionError):
                return None
    if start != b"[":
        return None
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        at = f"line {error.lineno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else str(error)[:80]
        raise InputError(f"{source.name}: not JSON, {at}; expected {malformed.expected}; {malformed.remedy}") from None
    assert isinstance(value, list)
    return value


def _parquet(source: Source, malformed: Malformed) -> Iterator[Record]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise InputError(
            f"{source.name}: reading Parquet needs the package pyarrow: pip install pyarrow; or convert the file to "
            "JSON lines"
        ) from None
    number = 0
    try:
        for batch in ParquetFile(io.BytesIO(source.content)).iter_batches(batch_size=1024):
            for fields in batch.to_pylist():
                malformed.records += 1
                yield Record(f"{source.prefix}row {number}", fields)
                number += 1
    except (ArrowException, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:100]
        raise InputError(f"{source.name}: a damaged Parquet file ({reason}); {malformed.remedy}") from None


def csv_rows(source: Source, columns: dict[str, tuple[str, ...]], malformed: Malformed) -> Iterator[Record]:
    """Yield the rows of a CSV file, fields under our names.

    Args:
        source: the file.
        columns: its names for each of ours, in any case; those that start with "?" may be missing.
        malformed: counts the rows, and those whose length is not the header's.

    Raises:
        InputError: the header lacks a column.
    """
    text = source.content.decode("utf-8-sig", "replace")
    try:
        reader = csv.reader(io.StringIO(text, newline=""))
        header = [name.strip().lower() for name in next(reader, [])]
        place_of: dict[str, int] = {}
        for ours, names in columns.items():
            at = next((header.index(n.lower()) for n in names if n.lower() in header), None)
            if at is not None:
                place_of[ours.removeprefix("?")] = at
            elif not ours.startswith("?"):
                raise InputError(
                    f"{source.name} line 1: no column {names[0]}; expected {malformed.expected}; {malformed.remedy}"
                )
        for row in reader:
            if not any(field.strip() for field in row):
                continue
            malformed.records += 1
            place = f"{source.prefix}line {reader.line_num}"
            if len(row) != len(header):
                malformed.add(place, f"{len(row)} fields, expected {len(header)}")
            else:
                yield Record(place, {name: row[at].strip() for name, at in place_of.items()})
    except csv.Error as error:
        raise InputError(f"{source.name}: not CSV ({error}); {malformed.remedy}") from None
