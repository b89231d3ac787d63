"""Small traces for tests, made token by token, so that identities are right by construction."""

from __future__ import annotations

from collections import Counter

import numpy as np

from saecache_rl.vocabulary import TokenType
from saecache_rl.workloads.trace import ENDED_FOR_TOOL, HAS_TOOLS, Trace


class TraceBuilder:
    """Collects requests given as tokens and their types; `trace` chains their full blocks to identities."""

    def __init__(self, block_size: int = 16) -> None:
        self.block_size = block_size
        self._identity: dict[tuple[int, tuple[int, ...]], int] = {}
        self._parent: list[int] = []
        self._offset: list[int] = []
        self._type: list[int] = []
        self._rows: list[dict[str, float]] = []
        self._prompts: list[list[int]] = []
        self._replies: list[list[int]] = []

    def request(
        self,
        arrival: float,
        prompt: list[tuple[int, TokenType]],
        reply: list[tuple[int, TokenType]],
        session: int = -1,
        turn: int = -1,
        flags: int = 0,
        named: bool = True,
    ) -> None:
        """Add a request; tokens are (id, type) pairs. The reply's last token gets no KV; its blocks may go unnamed."""
        chain = self._chain(prompt + reply[:-1])
        full = len(prompt) // self.block_size
        self._prompts.append(chain[:full])
        self._replies.append(chain[full:] if named else [])
        self._rows.append(
            {
                "arrival": arrival,
                "session": session,
                "turn": turn,
                "prompt_tokens": len(prompt),
                "output_tokens": len(reply),
                "flags": flags,
            }
        )

    def _chain(self, tokens: list[tuple[int, TokenType]]) -> list[int]:
        chain: list[int] = []
        parent = -1
        for start in range(0, len(tokens) - self.block_size + 1, self.block_size):
            block = tokens[start : start + self.block_size]
            key = (parent, tuple(token for token, _ in block))
            if key not in self._identity:
                self._identity[key] = len(self._parent)
                self._parent.append(parent)
                self._offset.append(start // self.block_size)
                # most_common keeps the order of appearance among equals
                self._type.append(int(Counter(kind for _, kind in block).most_common(1)[0][0]))
            parent = self._identity[key]
            chain.append(parent)
        return chain

    def trace(self, name: str = "tiny") -> Trace:
        """Return the trace of all requests so far, in the order in which they were added."""

        def column(field: str, dtype: str) -> np.ndarray:
            return np.array([row[field] for row in self._rows], dtype)

        def starts(chains: list[list[int]]) -> np.ndarray:
            return np.concatenate([[0], np.cumsum([len(chain) for chain in chains])]).astype(np.int64)

        def flat(chains: list[list[int]]) -> np.ndarray:
            return np.array([block for chain in chains for block in chain], np.int32)

        trace = Trace(
            block_size=self.block_size,
            arrival=column("arrival", "f8"),
            session=column("session", "i4"),
            turn=column("turn", "i4"),
            prompt_tokens=column("prompt_tokens", "i4"),
            output_tokens=column("output_tokens", "i4"),
            salt=np.zeros(len(self._rows), np.int32),
            flags=column("flags", "u1"),
            phase=np.zeros(len(self._rows), np.uint8),
            prompt_start=starts(self._prompts),
            prompt_blocks=flat(self._prompts),
            generated_start=starts(self._replies),
            generated_blocks=flat(self._replies),
            parent=np.array(self._parent, np.int32),
            offset=np.array(self._offset, np.int32),
            token_type=np.array(self._type, np.uint8),
            name=name,
        )
        trace.validate()
        return trace


def tiny_trace(seed: int = 0, requests: int = 200, block_size: int = 16) -> Trace:
    """Draw a trace of chats, tool loops and one-off requests under three shared system prompts.

    Chats go on with probability 0.7 after about a minute; agents go on with 0.9 after about 5 seconds while their reply
    calls a tool, at most eight times, and end when it does not; a third of the sessions have one request.
    """
    generator = np.random.default_rng(seed)
    builder = TraceBuilder(block_size)
    fresh = 1_000_000

    def tokens(count: int, kind: TokenType) -> list[tuple[int, TokenType]]:
        nonlocal fresh
        fresh += count
        return [(token, kind) for token in range(fresh - count, fresh)]

    systems = [tokens(int(length), TokenType.SYSTEM) for length in generator.integers(20, 100, 3)]
    tools = tokens(80, TokenType.TOOL_DEFINITION)
    pending: list[tuple[float, int, int, str, list[tuple[int, TokenType]]]] = []
    clock = 0.0
    for session in range(requests):
        clock += float(generator.exponential(8.0))
        kind = str(generator.choice(["single", "chat", "agent"]))
        opening = list(systems[int(generator.integers(3))]) + (tools if kind == "agent" else [])
        opening += tokens(int(generator.integers(5, 120)), TokenType.USER)
        pending.append((clock, session, 0, kind, opening))
    while pending and len(builder._rows) < requests:
        pending.sort(key=lambda item: item[:2])
        arrival, session, turn, kind, prompt = pending.pop(0)
        calls = kind == "agent" and turn < 8 and bool(generator.random() < 0.9)
        goes_on = calls or (kind == "chat" and bool(generator.random() < 0.7))
        reply = tokens(int(generator.integers(1, 60)), TokenType.RESPONSE)
        flags = (HAS_TOOLS if kind == "agent" else 0) | (ENDED_FOR_TOOL if calls else 0)
        builder.request(arrival, prompt, reply, session, turn, flags)
        if goes_on:
            gap = float(generator.lognormal(1.6 if kind == "agent" else 4.0, 0.8))
            added = tokens(int(generator.integers(5, 80)), TokenType.TOOL_OUTPUT if calls else TokenType.USER)
            pending.append((arrival + gap, session, turn + 1, kind, prompt + reply + added))
    return builder.trace()
