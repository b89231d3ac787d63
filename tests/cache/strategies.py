"""Random small traces, full of the cases that matter: shared prefixes, whole-block prompts, replies generated twice."""

from __future__ import annotations

from hypothesis import strategies as st

from saecache_rl.vocabulary import TokenType
from saecache_rl.workloads.trace import ENDED_FOR_TOOL, HAS_TOOLS, Trace
from tests.support import TraceBuilder

BLOCK = 2


@st.composite
def traces(draw: st.DrawFn, max_requests: int = 25, max_prompt: int = 12, max_reply: int = 5, lead: int = 0) -> Trace:
    """Requests over an alphabet of two tokens, many of which extend an earlier request's tokens.

    All prompts of a trace begin with the same tokens, none or `lead` of them.
    """
    builder = TraceBuilder(block_size=BLOCK)
    histories: list[list[tuple[int, TokenType]]] = []
    now = 0.0
    types = draw(st.lists(st.sampled_from(list(TokenType)), min_size=3, max_size=3))

    beginning = [(7, types[0])] * draw(st.sampled_from([0, lead]))

    def tokens(least: int, most: int) -> list[tuple[int, TokenType]]:
        ids = draw(st.lists(st.integers(0, 1), min_size=least, max_size=most))
        return [(i, types[i]) for i in ids]

    for _ in range(draw(st.integers(1, max_requests))):
        now += draw(st.sampled_from([0.0, 0.01, 1.0, 5.0, 40.0]))
        start: list[tuple[int, TokenType]] = []
        if histories and draw(st.booleans()):
            start = draw(st.sampled_from(histories))
        prompt = (start + tokens(0 if start else 1, 4))[:max_prompt]
        extended = beginning + prompt
        reply = tokens(0, max_reply)
        flags = draw(st.sampled_from([0, 0, HAS_TOOLS, ENDED_FOR_TOOL]))
        builder.request(now, extended, reply, flags=flags, named=draw(st.integers(0, 9)) > 0)
        histories.append(prompt + reply)
    trace = builder.trace()
    return trace.without_generated() if draw(st.integers(0, 9)) == 0 else trace
