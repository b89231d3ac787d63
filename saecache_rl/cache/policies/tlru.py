"""Tail-Optimized LRU: spares what keeps the next prefill of a long conversation under a latency threshold."""

from __future__ import annotations

import math

from saecache_rl.cache.layout import ON_RELEASE, SCORE
from saecache_rl.cache.params import Param, ParamSpace
from saecache_rl.cache.policy import Functions, Policy
from saecache_rl.compiled import kernel

# Classes of candidates, each ordered by release, and places in `cache.params`.
SAFE, NEEDED = 0, 1
THRESHOLD, NEXT_PROMPT = 0, 1


@kernel(ON_RELEASE)
def on_release(cache, chain, size):  # type: ignore[no-untyped-def]
    """A block is safe if what stands before it in its chain is the budget of the request that ends, or more."""
    request = cache.request[0]
    pool = cache.pool[0]
    history = request.prompt_tokens + request.output_tokens
    budget = history + cache.params[NEXT_PROMPT] - cache.params[THRESHOLD]
    for i in range(size):
        block = cache.blocks[chain[i]]
        block.key = pool.release
        block.cls = SAFE if block.offset * pool.block_size >= budget else NEEDED


@kernel(SCORE)
def score(cache, slots, size, scores):  # type: ignore[no-untyped-def]
    """Number of the latest release; minus infinity where safe."""
    for i in range(size):
        block = cache.blocks[slots[i]]
        scores[i] = -math.inf if block.cls == SAFE else block.key


class TailOptimizedLRU(Policy):
    """T-LRU (Zhang, Li, Moallemi and Peng, Tail-Optimized Caching for LLM Inference, arXiv 2510.15152, algorithm 1).

    The next turn of a conversation with a history of L tokens, of which X are cached, computes L + Q - X tokens. As
    long as that is at most xi it is in time, so that what is cached beyond the budget L + Q - xi makes no difference to
    the tail: *TEL-safe* in the paper. It is evicted before all else, oldest release first; then the rest is, as in
    LRU. A large xi makes everything safe, a small one nothing: both are LRU.

    What the paper leaves open, or has no name for:

    - Its unit is the block, here tokens, since block sizes differ by engine. 4,096 and 200 tokens stand for its
      threshold of 200 ms at some 20 tokens a millisecond and for a turn of chat.
    - L is prompt and reply of the latest request, cached or not. A block that several conversations have belongs to the
      one that released it last.
    - It has no order among safe blocks; here they go by LRU.
    - Parameters that an agent moves hold for what is released from then on.
    """

    name = "tlru"

    def __init__(self, threshold_tokens: float = 4096, next_prompt_tokens: float = 200) -> None:
        """Set where xi and Q start.

        Raises:
            InputError: one is not from 1 to a million.
        """
        self._space = ParamSpace(
            (
                Param(
                    "threshold_tokens",
                    threshold_tokens,
                    1.0,
                    1e6,
                    "log",
                    "xi: tokens that may be computed anew in time",
                ),
                Param("next_prompt_tokens", next_prompt_tokens, 1.0, 1e6, "log", "Q: tokens that the next turn adds"),
            )
        )

    def functions(self) -> Functions:
        """The compiled functions."""
        return Functions(score=score, on_release=on_release)

    def classes(self) -> tuple[bool, ...]:
        """Safe and needed, both ordered."""
        return (True, True)

    def space(self) -> ParamSpace:
        """xi and Q, in tokens."""
        return self._space
