"""Sessions of which a source tells lengths, not texts: tokens that stand for what was said."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from saecache_rl.vocabulary import TokenType
from saecache_rl.workloads.chat_template import Tokens

#: Tokens that nobody else has are numbered from minus this on; blocks that sessions share are not negative.
_OWN = 1 << 62


class Stream:
    """Numbers tokens that no other session has, in order."""

    def __init__(self) -> None:
        self._next = -_OWN

    def fresh(self, count: int, kind: TokenType) -> Tokens:
        """Return `count` tokens that appear nowhere else."""
        ids = np.arange(self._next, self._next + count, dtype=np.int64)
        self._next += count
        return Tokens(ids, np.full(count, int(kind), np.uint8))


def of_blocks(ids: npt.NDArray[np.int64], count: int, block_size: int, kind: TokenType) -> Tokens:
    """Return the `count` tokens of blocks with the given ids, the last one partial or not."""
    tokens = (ids[:, None] * block_size + np.arange(block_size)).reshape(-1)[:count]
    return Tokens(tokens, np.full(len(tokens), int(kind), np.uint8))
