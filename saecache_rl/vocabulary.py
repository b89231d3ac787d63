"""The words every part shares: token types of blocks, and the four queues of SAECache.

The numbers are stored in traces and in compiled state, so they never change.
"""

from __future__ import annotations

from enum import IntEnum


class TokenType(IntEnum):
    """What the tokens of a block are; a block has the type of most of its tokens, the earlier on a tie."""

    SYSTEM = 0
    TOOL_DEFINITION = 1
    USER = 2
    RESPONSE = 3
    TOOL_OUTPUT = 4
    REASONING = 5
    UNKNOWN = 6


class Queue(IntEnum):
    """The queue that a released block is routed to (SAECache, arXiv 2605.18825)."""

    EVICT_FIRST = 0
    STRUCTURAL = 1
    CHAT = 2
    AGENTIC = 3


NUM_TOKEN_TYPES = len(TokenType)
NUM_QUEUES = len(Queue)
TOKEN_TYPE_NAMES: tuple[str, ...] = tuple(t.name.lower() for t in TokenType)
QUEUE_NAMES: tuple[str, ...] = tuple(q.name.lower() for q in Queue)
