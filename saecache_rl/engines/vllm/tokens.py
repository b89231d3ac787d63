"""Token ids of a trace's requests, made from the identities of their blocks: the same block, the same tokens, always.

The first tokens of a block spell its identity, so that no two blocks are alike; the others are drawn from it by a hash,
so that a model gets something to compute. Nothing here depends on the vocabulary's meaning: only on its size.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from saecache_rl.errors import InputError
from saecache_rl.workloads.trace import Trace

TokenIds = npt.NDArray[np.int64]
#: Ids below this are left out: tokenizers keep special tokens or bytes there. Models with special tokens at the end of
#: their vocabulary lose nothing either: a token that is computed or forced means nothing to vLLM but the end of a
#: sequence, which a replay ignores.
FIRST_ID = 8


def mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finalizer (Steele, Lea, Flood 2014)."""
    with np.errstate(over="ignore"):
        values = values + np.uint64(0x9E3779B97F4A7C15)
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _draw(seeds: npt.NDArray[np.int64], count: int, choices: int) -> TokenIds:
    """(n, count) ids drawn from each seed."""
    places = np.arange(count, dtype=np.uint64)
    keys = mix(seeds.astype(np.uint64))[:, None] ^ (places * np.uint64(0x2545F4914F6CDD1D))[None, :]
    return (mix(keys) % np.uint64(choices)).astype(np.int64) + FIRST_ID


def block_tokens(identities: npt.NDArray[np.int32], block_size: int, vocabulary: int) -> TokenIds:
    """(n, block_size) token ids of blocks.

    Args:
        identities: (n,) numbers of blocks, below the vocabulary's size to the power of the digits that it takes.
        block_size: tokens in a block.
        vocabulary: number of ids that the model knows.

    Raises:
        InputError: the vocabulary, or the block, is too small to tell blocks apart.
    """
    choices = vocabulary - FIRST_ID
    if choices < 2:
        raise InputError(f"a vocabulary of {vocabulary} tokens is too small to replay a trace")
    tokens = _draw(identities.astype(np.int64), block_size, choices)
    rest = identities.astype(np.int64)
    for place in range(block_size):
        tokens[:, place] = rest % choices + FIRST_ID
        rest = rest // choices
        # Every identity takes as many digits as the widest 32-bit number would, so that none is another's beginning.
        if choices ** (place + 1) >= 2**31:
            return tokens
    raise InputError(f"{block_size} tokens of a vocabulary of {vocabulary} can't tell 2^31 blocks apart")


def request_tokens(trace: Trace, r: int, vocabulary: int) -> tuple[list[int], list[int]]:
    """The prompt of request `r` and its reply, output_tokens long.

    What fills no block is drawn from the request's number, so that it is like no other request's.
    """
    size = trace.block_size
    tokens = block_tokens(trace.chain(r), size, vocabulary).reshape(-1)
    end = int(trace.prompt_tokens[r]) + int(trace.output_tokens[r])
    left = _draw(np.array([-1 - r]), max(end - len(tokens), 0), vocabulary - FIRST_ID)[0]
    whole = np.concatenate([tokens, left])[:end].tolist()
    at = int(trace.prompt_tokens[r])
    return whole[:at], whole[at:]
