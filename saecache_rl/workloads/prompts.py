"""The prompts themselves, for what reads them before they are let go of: models that predictors learn from.

A trace holds identities of blocks, no tokens. Within ``with keep_prompts() as kept``, loaders of texts leave those of
the trace that they make in `kept.prompts`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Prompts:
    """The prompts of a trace's R requests.

    timelines: token ids; a prompt is the beginning of one, and those of a session often are of the same.
    timeline: (R,) which. tokens: (R,) how many of its ids.
    texts: (R) the latest text before each reply, its end where it is long.
    """

    timelines: list[Ids]
    timeline: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]
    texts: list[str]


@dataclass
class Kept:
    """prompts: of the last trace that was made; None before, or where its source has no texts."""

    prompts: Prompts | None = None


_kept: ContextVar[Kept | None] = ContextVar("kept_prompts", default=None)


@contextmanager
def keep_prompts() -> Iterator[Kept]:
    """Have loaders keep the prompts."""
    kept = Kept()
    token = _kept.set(kept)
    try:
        yield kept
    finally:
        _kept.reset(token)


def keeper() -> Kept | None:
    """Return where prompts are to be left; None where nobody asks for them."""
    return _kept.get()


def prompts_of(requests: list[tuple[Ids, int, str]]) -> Prompts:
    """Collect (timeline, tokens, text) of requests; the same object is one timeline."""
    number: dict[int, int] = {}
    timelines: list[Ids] = []
    which = []
    for ids, _, _ in requests:
        if id(ids) not in number:
            number[id(ids)] = len(timelines)
            timelines.append(ids)
        which.append(number[id(ids)])
    tokens = np.array([tokens for _, tokens, _ in requests], np.int64)
    return Prompts(timelines, np.array(which, np.int64), tokens, [text for _, _, text in requests])
