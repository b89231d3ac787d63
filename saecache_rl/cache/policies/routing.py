"""Which of the four queues a released block goes to; shared by SAECache and UniCache."""

from __future__ import annotations

from saecache_rl.cache.layout import GENERATED, SHARED
from saecache_rl.compiled import kernel
from saecache_rl.vocabulary import Queue, TokenType

EVICT_FIRST, STRUCTURAL = int(Queue.EVICT_FIRST), int(Queue.STRUCTURAL)
CHAT, AGENTIC = int(Queue.CHAT), int(Queue.AGENTIC)
SYSTEM, TOOL_DEFINITION = int(TokenType.SYSTEM), int(TokenType.TOOL_DEFINITION)


@kernel(forceinline=True)
def route(cache, slot, session_queue):  # type: ignore[no-untyped-def]
    """Set and return the queue of one block of a request that ends, from what is known then.

    Generated blocks go to evict-first until a later request matches them. Blocks of a session with several turns go to
    `session_queue`. Of other requests (`session_queue` is evict-first), system prompts, tool definitions and what
    another session has matched are structural; the rest is evicted first. Also keeps the largest structural offset.
    """
    block = cache.blocks[slot]
    queue = session_queue
    if block.flags & GENERATED:
        queue = EVICT_FIRST
    elif session_queue == EVICT_FIRST and (
        block.token_type == SYSTEM or block.token_type == TOOL_DEFINITION or block.flags & SHARED
    ):
        queue = STRUCTURAL
        pool = cache.pool[0]
        if block.offset > pool.deepest:
            pool.deepest = block.offset
            pool.version += 1
    block.queue = queue
    return queue


@kernel(forceinline=True)
def queue_of_session(cache):  # type: ignore[no-untyped-def]
    """Agentic or chat if the current request's session has several turns, else evict-first.

    It has several if this is a later turn, or a first one that the predictor expects to go on; it is agentic if it has
    had tools.
    """
    request = cache.request[0]
    if request.turn == 0 and request.continues == 0:
        return EVICT_FIRST
    return AGENTIC if request.agentic != 0 else CHAT
