"""Which of the four queues a released block goes to; shared by SAECache and UniCache."""

from __future__ import annotations

from saecache_rl.cache.layout import GENERATED, ON_ACCESS, ON_RELEASE, SHARED
from saecache_rl.compiled import kernel
from saecache_rl.vocabulary import Queue, TokenType

EVICT_FIRST, STRUCTURAL = int(Queue.EVICT_FIRST), int(Queue.STRUCTURAL)
CHAT, AGENTIC = int(Queue.CHAT), int(Queue.AGENTIC)
SYSTEM, TOOL_DEFINITION = int(TokenType.SYSTEM), int(TokenType.TOOL_DEFINITION)


@kernel(ON_ACCESS)
def mark_shared(cache, chain, hits, missed):  # type: ignore[no-untyped-def]
    """Note the blocks that a session other than the one that inserted them has matched."""
    session = cache.request[0].session
    for i in range(hits):
        block = cache.blocks[chain[i]]
        if block.session != session:
            block.flags |= SHARED


@kernel(ON_RELEASE)
def route(cache, chain, size):  # type: ignore[no-untyped-def]
    """Set the queue of each block of a request that ends, from what is known then.

    Generated blocks go to evict-first until a later request matches them. Blocks of a session with several turns (a later
    turn, or a first one that the predictor expects to go on) go to agentic if the session has had tools, else to chat.
    Of other requests, system prompts, tool definitions and what another session has matched are structural; the rest is
    evicted first. Also keeps the largest structural offset.
    """
    pool = cache.pool[0]
    request = cache.request[0]
    several = request.turn > 0 or request.continues != 0
    session_queue = AGENTIC if request.agentic != 0 else CHAT
    for i in range(size):
        block = cache.blocks[chain[i]]
        if block.flags & GENERATED:
            block.queue = EVICT_FIRST
        elif several:
            block.queue = session_queue
        elif block.token_type == SYSTEM or block.token_type == TOOL_DEFINITION or block.flags & SHARED:
            block.queue = STRUCTURAL
            if block.offset > pool.deepest:
                pool.deepest = block.offset
                pool.version += 1
        else:
            block.queue = EVICT_FIRST
