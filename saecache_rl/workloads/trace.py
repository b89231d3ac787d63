"""A trace: the requests of a workload as columns, the blocks of each prompt and reply as dense, chained identities.

Loaders and generators make one; the engines only read it. Two blocks have the same identity exactly when the
tokens from the start of their prompts (and the salt) are the same, so that an identity is a node of the tree of
all prefixes and `parent` is its edge.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from saecache_rl.errors import InputError
from saecache_rl.vocabulary import NUM_TOKEN_TYPES

FORMAT = 2

# Bits of `Trace.flags`.
HAS_TOOLS = 1  # the prompt has tool definitions or tool outputs
ENDED_FOR_TOOL = 2  # the reply ended in a tool call; a server sees it in the output tokens

FloatColumn = npt.NDArray[np.float64]
IntColumn = npt.NDArray[np.int32]
LongColumn = npt.NDArray[np.int64]
ByteColumn = npt.NDArray[np.uint8]

COLUMNS: dict[str, str] = {
    "arrival": "f8",
    "session": "i4",
    "turn": "i4",
    "prompt_tokens": "i4",
    "output_tokens": "i4",
    "salt": "i4",
    "flags": "u1",
    "phase": "u1",
    "prompt_start": "i8",
    "prompt_blocks": "i4",
    "generated_start": "i8",
    "generated_blocks": "i4",
    "parent": "i4",
    "offset": "i4",
    "token_type": "u1",
}

#: What only some sources have; no engine or policy reads it, so it is no part of the digest.
OPTIONAL_COLUMNS: dict[str, str] = {"reply_seconds": "f8", "words_start": "i8", "words": "u4"}


def completed_blocks(prompt_tokens: Any, output_tokens: Any, block_size: int) -> Any:
    """Return how many blocks each reply completes: the last sampled token has no KV."""
    return (prompt_tokens + np.maximum(output_tokens, 1) - 1) // block_size - prompt_tokens // block_size


@dataclass(frozen=True)
class Trace:
    """Requests in order of arrival (R of them) and the identities of their blocks (U of them).

    Per request:
        arrival: (R,) seconds from the start of the trace, never falling.
        session: (R,) the client's session, dense from 0; -1 where the data names none. What an engine without
            hints knows instead is `saecache_rl.workloads.sessions.lineage`.
        turn: (R,) 0 for a session's first request; -1 where the data names no session.
        prompt_tokens, output_tokens: (R,) tokens; a prompt has at least one.
        salt: (R,) requests of different salts share nothing.
        flags: (R,) bits HAS_TOOLS, ENDED_FOR_TOOL.
        phase: (R,) index into `phases`, for plots only: no policy reads it.
        prompt_start: (R + 1,) request r has `prompt_blocks[prompt_start[r]:prompt_start[r + 1]]`, the identities
            of its prompt's full blocks, first to last: prompt_tokens // block_size of them.
        generated_start: (R + 1,) likewise `generated_blocks`: the full blocks that the reply completes, following the
            prompt's: (prompt_tokens + output_tokens - 1) // block_size - prompt_tokens // block_size of them (the
            last sampled token has no KV), or none where the source does not identify them (`reply_named`).

    Per identity:
        parent: (U,) the identity before it in its chain, -1 at a chain's start.
        offset: (U,) its index in the chain.
        token_type: (U,) a `TokenType`.
    """

    block_size: int
    arrival: FloatColumn
    session: IntColumn
    turn: IntColumn
    prompt_tokens: IntColumn
    output_tokens: IntColumn
    salt: IntColumn
    flags: ByteColumn
    phase: ByteColumn
    prompt_start: LongColumn
    prompt_blocks: IntColumn
    generated_start: LongColumn
    generated_blocks: IntColumn
    parent: IntColumn
    offset: IntColumn
    token_type: ByteColumn
    # Whether the source identifies replies at all. A reply that completes no block leaves nothing in the columns
    # above, yet its KV needs room; this tells it from one whose blocks are not known.
    names_replies: bool = True
    name: str = "trace"
    phases: tuple[str, ...] = ("all",)
    # (R,) seconds that each reply took, nan where the source does not say; None where it never does. For
    # characterisation only: no engine or policy reads it.
    reply_seconds: FloatColumn | None = None
    # Hashed words of what is new in each request, where the source has texts: request r has
    # `words[words_start[r]:words_start[r + 1]]`. For trained predictors only.
    words_start: LongColumn | None = None
    words: npt.NDArray[np.uint32] | None = None
    # How the trace came about: options of the loader (arrivals, share, …) and counts, all as text; goes into results.
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def num_requests(self) -> int:
        """R, the number of requests."""
        return len(self.arrival)

    @property
    def num_identities(self) -> int:
        """U, the number of distinct blocks."""
        return len(self.parent)

    @cached_property
    def matchable_blocks(self) -> IntColumn:
        """(R,) blocks of each prompt that a cache can serve: (prompt_tokens - 1) // block_size."""
        return ((self.prompt_tokens - 1) // self.block_size).astype(np.int32)

    def _completed(self) -> LongColumn:
        made: LongColumn = completed_blocks(self.prompt_tokens.astype(np.int64), self.output_tokens, self.block_size)
        return made

    @cached_property
    def reply_named(self) -> npt.NDArray[np.bool_]:
        """(R,) whether every block that the reply completes is known; without that, a reply is its first token."""
        known: npt.NDArray[np.bool_] = np.diff(self.generated_start) == self._completed()
        return known & self.names_replies

    @cached_property
    def request_blocks(self) -> IntColumn:
        """(R,) blocks that each request holds at its end, a partial last one included."""
        reply = np.where(self.reply_named, np.maximum(self.output_tokens, 1) - 1, 0)
        return (-(-(self.prompt_tokens.astype(np.int64) + reply) // self.block_size)).astype(np.int32)

    def chain(self, r: int) -> IntColumn:
        """Identities of the full blocks of request `r`, the prompt's, then those of its reply."""
        prompt = self.prompt_blocks[self.prompt_start[r] : self.prompt_start[r + 1]]
        generated = self.generated_blocks[self.generated_start[r] : self.generated_start[r + 1]]
        return np.concatenate([prompt, generated])

    @cached_property
    def digest(self) -> str:
        """SHA-256 over all that an engine reads, as hexadecimal text: equal traces, equal digests."""
        sha = hashlib.sha256(f"saecache-rl trace {FORMAT} {self.block_size} {self.names_replies}".encode())
        for column in COLUMNS:
            array = np.ascontiguousarray(getattr(self, column))
            sha.update(f"{column} {array.dtype.str} {len(array)}".encode())
            sha.update(array.tobytes())
        return sha.hexdigest()

    def validate(self) -> None:
        """Check every rule of the columns.

        Raises:
            InputError: at the first broken one, with the request's or the block's number.
        """
        requests, identities = self.num_requests, self.num_identities
        if self.block_size < 1:
            raise InputError(f"{self.name}: block_size is {self.block_size}; it must be at least 1")
        if requests == 0:
            raise InputError(f"{self.name}: no requests; give a file or an option that yields at least one")
        per_request = ("arrival", "session", "turn", "prompt_tokens", "output_tokens", "salt", "flags")
        lengths = dict.fromkeys(per_request, requests)
        lengths |= {"phase": requests, "prompt_start": requests + 1, "generated_start": requests + 1}
        lengths |= {"parent": identities, "offset": identities, "token_type": identities}
        for column, length in lengths.items():
            if len(getattr(self, column)) != length:
                raise InputError(
                    f"{self.name}: column {column} has {len(getattr(self, column))} rows, expected {length}"
                )
        self._check(np.isfinite(self.arrival) & (self.arrival >= 0), "arrival must be finite and not negative")
        self._check(np.diff(self.arrival, prepend=0.0) >= 0, "arrival falls; sort the requests by time")
        self._check(self.prompt_tokens >= 1, "a prompt needs at least one token")
        self._check(self.output_tokens >= 0, "output_tokens must not be negative")
        full = self.prompt_tokens // self.block_size
        self._check(np.diff(self.prompt_start) == full, "prompt_start disagrees with prompt_tokens // block_size")
        generated = np.diff(self.generated_start)
        fits = (generated == 0) | (generated == self._completed())
        self._check(fits, "generated blocks disagree with output_tokens")
        self._check((generated == 0) | self.names_replies, "generated blocks, but names_replies is False")
        for starts, blocks, what in (
            (self.prompt_start, self.prompt_blocks, "prompt_blocks"),
            (self.generated_start, self.generated_blocks, "generated_blocks"),
        ):
            if starts[0] != 0 or starts[-1] != len(blocks):
                raise InputError(f"{self.name}: the starts of {what} do not span its {len(blocks)} rows")
            if len(blocks) and not 0 <= blocks.min() <= blocks.max() < identities:
                raise InputError(f"{self.name}: {what} names an identity outside 0 … {identities - 1}")
        if identities and not (self.parent < np.arange(identities)).all():
            raise InputError(f"{self.name}: an identity precedes its parent; chain the blocks in order of appearance")
        if identities and not (self.token_type < NUM_TOKEN_TYPES).all():
            raise InputError(f"{self.name}: an unknown token type; see saecache_rl.vocabulary.TokenType")
        depth = np.where(self.parent < 0, 0, self.offset[self.parent] + 1)
        if not np.array_equal(depth, self.offset):
            raise InputError(f"{self.name}: an identity's offset is not its parent's + 1")
        self._check_chains()

    def _check_chains(self) -> None:
        """Each block's parent must be the one before it in its request, the first generated one's the prompt's last."""
        for starts, blocks, first in (
            (self.prompt_start, self.prompt_blocks, None),
            (self.generated_start, self.generated_blocks, self.prompt_start[1:]),
        ):
            if not len(blocks):
                continue
            before = np.empty(len(blocks), np.int32)
            before[1:] = blocks[:-1]
            rows = np.flatnonzero(np.diff(starts) > 0)
            heads = starts[rows]
            before[heads] = -1
            if first is not None:
                ends = first[rows]
                has_prompt = ends > self.prompt_start[rows]
                before[heads[has_prompt]] = self.prompt_blocks[ends[has_prompt] - 1]
            wrong = np.flatnonzero(self.parent[blocks] != before)
            if len(wrong):
                request = int(np.searchsorted(starts, wrong[0], side="right")) - 1
                raise InputError(f"{self.name}: request {request}: its blocks are not a chain of parents")

    def _check(self, good: npt.NDArray[np.bool_], problem: str) -> None:
        bad = np.flatnonzero(~good)
        if len(bad):
            raise InputError(f"{self.name}: request {bad[0]}: {problem}")

    def head(self, requests: int) -> Trace:
        """Return the first `requests` requests, every identity kept: what a run that was cut short has seen."""
        n = min(requests, self.num_requests)
        per_request = ("arrival", "session", "turn", "prompt_tokens", "output_tokens", "salt", "flags", "phase")
        cut: dict[str, npt.NDArray[np.generic]] = {c: getattr(self, c)[:n] for c in per_request}
        if self.reply_seconds is not None:
            cut["reply_seconds"] = self.reply_seconds[:n]
        if self.words_start is not None and self.words is not None:
            cut |= {"words_start": self.words_start[: n + 1], "words": self.words[: self.words_start[n]]}
        for kind in ("prompt", "generated"):
            starts = getattr(self, f"{kind}_start")[: n + 1]
            cut |= {f"{kind}_start": starts, f"{kind}_blocks": getattr(self, f"{kind}_blocks")[: starts[-1]]}
        return replace(self, **cut)  # type: ignore[arg-type]

    def without_generated(self) -> Trace:
        """Return the same requests with no generated blocks (`workload.generated=none`)."""
        return replace(
            self,
            generated_start=np.zeros(self.num_requests + 1, np.int64),
            generated_blocks=np.empty(0, np.int32),
            names_replies=False,
        )

    def save(self, path: Path) -> None:
        """Write the trace to one file (NumPy's .npz), whole or not at all.

        The file is written beside `path` first and moved there, so an interrupted save leaves the old one.
        """
        header = {"format": FORMAT, "block_size": self.block_size, "name": self.name, "digest": self.digest}
        header |= {"names_replies": self.names_replies, "phases": list(self.phases), "notes": dict(self.notes)}
        partial = path.with_name(path.name + ".partial")
        with partial.open("wb") as file:
            columns = {c: getattr(self, c) for c in COLUMNS}
            columns |= {c: getattr(self, c) for c in OPTIONAL_COLUMNS if getattr(self, c) is not None}
            np.savez(file, header=np.array(json.dumps(header, sort_keys=True)), **columns)
        partial.replace(path)

    @staticmethod
    def load(path: Path) -> Trace:
        """Read a trace that `save` wrote.

        Raises:
            InputError: the file is absent, no trace, of another version, or not what was saved (by its digest).
        """
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as data:
                header = json.loads(str(data["header"]))
                if header["format"] != FORMAT:
                    raise InputError(
                        f"{path}: trace format {header['format']}, expected {FORMAT}; make the trace again"
                    )
                columns = {c: np.ascontiguousarray(data[c], dtype=t) for c, t in COLUMNS.items()}
                columns |= {c: np.ascontiguousarray(data[c], dtype=t) for c, t in OPTIONAL_COLUMNS.items() if c in data}
            trace = Trace(
                block_size=int(header["block_size"]),
                names_replies=bool(header["names_replies"]),
                name=str(header["name"]),
                phases=tuple(header["phases"]),
                notes=dict(header["notes"]),
                **columns,
            )
            digest = header["digest"]
        except FileNotFoundError:
            raise InputError(f"{path}: no such file; Trace.save writes one") from None
        except InputError:
            raise
        except Exception as error:  # numpy and zipfile raise a dozen types on damaged files, MemoryError among them
            reason = " ".join(str(error).split())[:120]
            raise InputError(f"{path}: not a saved trace ({reason}); Trace.save writes one") from None
        if trace.digest != digest:
            raise InputError(f"{path}: damaged: its content does not have the digest that it names; make it again")
        return trace


assert set(COLUMNS) <= {f.name for f in fields(Trace)}
