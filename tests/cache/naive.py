"""A second implementation of the pool and of every policy, written for clearness alone: lists, scans, no heaps.

It shares no code with `saecache_rl.cache`. A victim is found by scoring every candidate anew.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from scipy import stats

from saecache_rl.vocabulary import Queue, TokenType
from saecache_rl.workloads.sessions import Sessions
from saecache_rl.workloads.trace import Trace


@dataclass(eq=False)
class Slot:
    """A resident block."""

    identity: int
    offset: int
    token_type: int
    session: int
    generated: bool
    time: float = 0.0
    access: int = 0
    accessed_by: int = 0  # request
    inserted: int = 0
    release: int = 0
    count: int = 1
    refs: int = 1
    shared: bool = False
    queue: int = 0
    key: float = 0.0
    spare: bool = False


class NaivePool:
    """Serves a trace one request at a time; `slots` is what each physical slot holds."""

    def __init__(
        self,
        trace: Trace,
        sessions: Sessions,
        policy: str,
        num_blocks: int,
        params: dict[str, float],
        continues: list[float] | None = None,
    ) -> None:
        self.trace, self.sessions, self.policy, self.params = trace, sessions, policy, params
        self.continues = continues
        self.slots: list[Slot | None] = [None] * num_blocks
        self.free = list(range(num_blocks - 1, -1, -1))
        self.now = 0.0
        self.access = self.release = self.inserted = 0
        self.deepest = 0.0
        self.age = 0.0  # LFU's
        self.hits: list[int] = []
        self.evicted: list[int] = []

    # -- what is resident

    def copies(self, identity: int) -> list[int]:
        """Slots that hold an identity, the oldest first."""
        held = [(s.inserted, i) for i, s in enumerate(self.slots) if s is not None and s.identity == identity]
        return [i for _, i in sorted(held)]

    def candidates(self) -> list[int]:
        copies = Counter(s.identity for s in self.slots if s is not None)
        with_children = {int(self.trace.parent[i]) for i in copies}
        found = []
        for i, slot in enumerate(self.slots):
            if slot is None or slot.refs:
                continue
            if copies[slot.identity] > 1 or slot.identity not in with_children or self.loose(slot):
                found.append(i)
        return found

    # -- scores

    def score(self, slot: Slot) -> float:
        scorers: dict[str, Callable[[Slot], float]] = {
            "lru": lambda s: s.release,
            "lfu": lambda s: s.key,
            "optimum": lambda s: -self.next_use(s),
            "saecache": self.saecache,
            "unicache": self.unicache,
        }
        return scorers[self.policy](slot)

    def saecache(self, s: Slot) -> float:
        if s.queue == Queue.EVICT_FIRST:
            return -math.inf
        queue = Queue(s.queue).name.lower()
        dt = max(self.now - s.time, 1e-3)
        if s.queue == Queue.STRUCTURAL:
            p = 1.0 - (s.offset / max(self.deepest, 1.0)) ** self.params["gamma"]
            log_p = math.log(p) if p > 0 else -1e300
        else:
            mu, sigma = self.params[f"mu.{queue}"], self.params[f"sigma.{queue}"]
            log_p = float(stats.norm.logsf((math.log(dt) - mu) / sigma))
        weight = self.params[f"weight.{TokenType(s.token_type).name.lower()}"]
        return math.log(self.params[f"alpha.{queue}"]) + math.log(weight) + log_p - math.log(dt)

    def unicache(self, s: Slot) -> float:
        if s.queue == Queue.EVICT_FIRST:
            return -math.inf
        queue = Queue(s.queue).name.lower()
        dt = max(self.now - s.time, 1e-3)
        if s.queue == Queue.STRUCTURAL:
            p = 1.0 - s.offset / max(self.deepest, 1.0)
            log_p = math.log(p) if p > 0 else -1e300
        else:
            mu, sigma = (1.81, 1.092) if s.queue == Queue.AGENTIC else (4.77, 1.279)
            log_p = float(stats.norm.logsf((math.log(dt) - mu) / sigma))
        return math.log(self.params[f"alpha.{queue}"]) + log_p

    def events(self, slot: Slot) -> tuple[str, int]:
        """What happens to the block next, by reading the trace ahead: ("match" | "insert" | "none", request)."""
        t = self.trace
        for r in range(slot.accessed_by + 1, t.num_requests):
            prompt = list(t.prompt_blocks[t.prompt_start[r] : t.prompt_start[r + 1]])
            generated = list(t.generated_blocks[t.generated_start[r] : t.generated_start[r + 1]])
            matchable = (int(t.prompt_tokens[r]) - 1) // t.block_size
            if slot.identity in prompt[:matchable]:
                return "match", r
            if slot.identity in prompt[matchable:] or slot.identity in generated:
                return "insert", r
        return "none", t.num_requests

    def matched_after(self, identity: int, request: int) -> bool:
        t = self.trace
        return any(
            identity
            in t.prompt_blocks[t.prompt_start[r] : t.prompt_start[r] + (int(t.prompt_tokens[r]) - 1) // t.block_size]
            for r in range(request, t.num_requests)
        )

    def next_use(self, slot: Slot) -> float:
        what, request = self.events(slot)
        return request if what == "match" and not slot.spare else 2**31 - 1

    def loose(self, slot: Slot) -> bool:
        """Inserted anew before it is matched again: its children may outlive it."""
        if self.policy != "optimum":
            return False
        what, request = self.events(slot)
        return what == "insert" and self.matched_after(slot.identity, request)

    # -- what a policy does; references override these

    def accessed(self, chain: list[Slot], missed: list[int]) -> None:
        """A request has matched `chain`; the identities of its prompt's other full blocks are `missed`."""

    def choose(self, found: list[int]) -> int:
        """The candidate that goes."""

        def order(i: int) -> tuple[float, ...]:
            s = self.slots[i]
            assert s is not None
            if s.queue == Queue.EVICT_FIRST and self.policy in ("saecache", "unicache"):
                return (-math.inf, s.time, -s.offset, s.access)  # oldest first in evict-first
            return (self.score(s), 0.0, -s.offset, s.access)

        return min(found, key=order)

    def gone(self, slot: Slot) -> None:
        """The slot was evicted, and is no longer among `slots`."""
        if self.policy == "lfu":
            self.age = max(self.age, slot.key)

    def released(self, chain: list[Slot], r: int) -> None:
        """Request `r` is over."""
        for slot in chain:
            slot.key = slot.count + self.age
            self.route(slot, r)

    # -- serving

    def evict_one(self) -> int:
        found = self.candidates()
        assert found, "no candidate"
        victim = self.choose(found)
        slot = self.slots[victim]
        assert slot is not None
        self.evicted.append(slot.identity)
        self.slots[victim] = None
        self.gone(slot)
        return victim

    def take(self) -> int:
        return self.free.pop() if self.free else self.evict_one()

    def serve(self, r: int) -> None:
        t = self.trace
        self.now = max(self.now, float(t.arrival[r]))
        prompt = [int(b) for b in t.prompt_blocks[t.prompt_start[r] : t.prompt_start[r + 1]]]
        generated = [int(b) for b in t.generated_blocks[t.generated_start[r] : t.generated_start[r + 1]]]
        matchable = (int(t.prompt_tokens[r]) - 1) // t.block_size
        self.access += 1
        chain: list[int] = []
        for identity in prompt[:matchable]:
            copies = self.copies(identity)
            if not copies:
                break
            chain.append(copies[0])
            for spare in copies[1:]:
                other = self.slots[spare]
                assert other is not None
                other.spare = True
        self.hits.append(len(chain))
        for i in chain:
            slot = self.slots[i]
            assert slot is not None
            slot.refs += 1
            slot.time, slot.access, slot.accessed_by = self.now, self.access, r
            slot.count += 1
            slot.generated = slot.spare = False
            slot.shared |= slot.session != self.sessions.session[r]
        self.accessed([s for i in chain if (s := self.slots[i]) is not None], prompt[len(chain) :])
        new = [(b, False) for b in prompt[len(chain) :]] + [(b, True) for b in generated]
        total = int(t.prompt_tokens[r]) + max(int(t.output_tokens[r]), 1) - 1
        if not t.names_replies or total // t.block_size != len(prompt) + len(generated):
            total = int(t.prompt_tokens[r])  # nobody knows the reply's blocks
        partial = total % t.block_size != 0
        # A prompt takes all its blocks before any is inserted, a reply each when it needs it.
        taken = [self.take() for _ in range(-(-int(t.prompt_tokens[r]) // t.block_size) - len(chain))]
        for n, (identity, by_decoding) in enumerate(new):
            if n == len(taken):
                taken.append(self.take())
            self.inserted += 1
            self.slots[taken[n]] = Slot(
                identity,
                int(t.offset[identity]),
                int(t.token_type[identity]),
                int(self.sessions.session[r]),
                by_decoding,
                time=self.now,
                access=self.access,
                accessed_by=r,
                inserted=self.inserted,
            )
            chain.append(taken[n])
        if partial and len(taken) == len(new):
            taken.append(self.take())
        self.release += 1
        held = [s for i in chain if (s := self.slots[i]) is not None]
        for slot in held:
            slot.release = self.release
        self.released(held, r)
        for slot in reversed(held):
            slot.refs -= 1
        if partial:
            self.free.append(taken[-1])

    def route(self, slot: Slot, r: int) -> None:
        if self.policy not in ("saecache", "unicache"):
            return
        if slot.generated:
            slot.queue = Queue.EVICT_FIRST
        elif self.sessions.turn[r] > 0:
            slot.queue = Queue.AGENTIC if self.sessions.agentic[r] else Queue.CHAT
        elif slot.token_type in (TokenType.SYSTEM, TokenType.TOOL_DEFINITION) or slot.shared:
            slot.queue = Queue.STRUCTURAL
            self.deepest = max(self.deepest, slot.offset)
        else:
            slot.queue = Queue.EVICT_FIRST
