"""Hashed words of what is new in a request: what predictors may learn from a text without keeping it."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from saecache_rl.workloads.messages import Message

#: Of the latest text before a reply, and of the reply, the last so many characters are looked at.
LAST_CHARACTERS = 1500
_WORD = re.compile(r"\w+|[?!]")


def _hashes(text: str, namespace: str) -> list[int]:
    found = sorted(set(_WORD.findall(text[-LAST_CHARACTERS:].lower())))
    return [zlib.crc32(f"{namespace}{word}".encode("utf-8", "replace")) for word in found]


def latest_text(before: Sequence[Message]) -> str:
    """Return the end of the latest message's text."""
    return before[-1].content[-LAST_CHARACTERS:] if before else ""


def hashed_words(before: Sequence[Message], reply: Message) -> npt.NDArray[np.uint32]:
    """Return the different words of the latest message and of the reply, each hashed (CRC-32) in a space of its own.

    Both are known when the request is over.
    """
    return np.array(_hashes(latest_text(before), "asked ") + _hashes(reply.content, "replied "), np.uint32)
