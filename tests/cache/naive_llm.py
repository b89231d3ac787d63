"""References for the peers made for LLM serving: each rule as its paper states it, over the naive pool.

Plain Python from the papers' formulas. Nothing is shared with the compiled policies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tests.cache.naive import NaivePool, Slot


class NaiveTLRU(NaivePool):
    """Algorithm 1: a block is safe as long as the conversation keeps L + Q - xi tokens without it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.safe: dict[int, bool] = {}  # by insertion

    def score(self, slot: Slot) -> float:
        return slot.release - (10**9 if self.safe[slot.inserted] else 0)

    def route(self, slot: Slot, r: int) -> None:
        history = int(self.trace.prompt_tokens[r]) + int(self.trace.output_tokens[r])
        to_keep = max(history + self.params["next_prompt_tokens"] - self.params["threshold_tokens"], 0.0)
        self.safe[slot.inserted] = slot.offset * self.trace.block_size >= to_keep


class NaiveLPC(NaivePool):
    """Section 3.4: probabilities that fade, the highest of a shared block's conversations, the lowest evicted."""

    TURN_SECONDS = 100.0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.says: dict[int, list[tuple[float, float]]] = {}  # by insertion: (probability, time of the access)

    @staticmethod
    def log_odds(probability: float) -> float:
        return math.log(min(max(probability, 1e-6), 1 - 1e-6)) - math.log(1 - min(max(probability, 1e-6), 1 - 1e-6))

    def score(self, slot: Slot) -> float:
        # p(t) = p d / (p d + 1 - p) is logit(p) + ln d in log-odds, which no number of seconds rounds to 0 or 1.
        return max(self.log_odds(p) - (self.now - t) / self.TURN_SECONDS for p, t in self.says[slot.inserted])

    def route(self, slot: Slot, r: int) -> None:
        assert self.continues is not None
        said = (float(self.continues[r]), slot.time)
        kept = self.says.get(slot.inserted, []) if slot.shared else []
        self.says[slot.inserted] = [*kept, said]


class NaiveMarconi(NaivePool):
    """Equation 2, with the costs of an attention layer and its MLP spelled out; ranges as the request found them."""

    WIDTH = 64

    def serve(self, r: int) -> None:
        self.ranges: tuple[list[float], list[float]] | None = None
        super().serve(r)

    def efficiency(self, slot: Slot) -> float:
        def operations(tokens: int) -> float:
            d = self.WIDTH
            return (8 + 16) * tokens * d**2 + 4 * tokens**2 * d

        size = self.trace.block_size
        before = slot.offset * size
        return (operations(before + size) - operations(before)) / (4 * size * self.WIDTH)

    def recency(self, slot: Slot) -> float:
        return 1.0 / (self.access - slot.access)

    @staticmethod
    def scaled(value: float, of: list[float]) -> float:
        return (value - min(of)) / (max(of) - min(of)) if max(of) > min(of) else 1.0

    def score(self, slot: Slot) -> float:
        if self.ranges is None:
            leaves = [s for i in self.candidates() if (s := self.slots[i]) is not None]
            self.ranges = ([self.recency(s) for s in leaves], [self.efficiency(s) for s in leaves])
        recencies, efficiencies = self.ranges
        utility = self.scaled(self.recency(slot), recencies)
        utility += self.params["alpha"] * self.scaled(self.efficiency(slot), efficiencies)
        return utility


@dataclass
class Ghost:
    """A remembered eviction."""

    identity: int
    category: tuple[bool, int]
    time: float


@dataclass
class Category:
    """What is known of the requests of one kind and turn."""

    released: float = 0.0
    reused: float = 0.0
    seconds: float = 0.0


class NaiveWorkloadAware(NaivePool):
    """Section 4: F_w(t + life) - F_w(t), F_w = p_w (1 - exp(-rate_w t)), then the larger offset."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.categories: dict[tuple[bool, int], Category] = {}
        self.of: dict[int, tuple[bool, int]] = {}  # by insertion
        self.ghosts: list[Ghost | None] = []  # of the latest evictions; None: seen again
        self.life: float | None = None
        self.ages: list[float] = []

    def used_again(self, category: tuple[bool, int], last: float) -> None:
        known = self.categories[category]
        known.reused += 1
        known.seconds += self.now - last

    def serve(self, r: int) -> None:
        t = self.trace
        self.now = max(self.now, float(t.arrival[r]))
        if self.ages:
            mean = sum(self.ages) / len(self.ages)
            self.life = mean if self.life is None else self.life + 0.05 * (mean - self.life)
            self.ages = []
        prompt = [int(b) for b in t.prompt_blocks[t.prompt_start[r] : t.prompt_start[r + 1]]]
        hits = 0
        while hits < (int(t.prompt_tokens[r]) - 1) // t.block_size and self.copies(prompt[hits]):
            slot = self.slots[self.copies(prompt[hits])[0]]
            assert slot is not None
            self.used_again(self.of[slot.inserted], slot.time)
            hits += 1
        for identity in prompt[hits:]:
            for ghost in self.ghosts:
                if ghost is not None and ghost.identity == identity:
                    self.used_again(ghost.category, ghost.time)
            self.forget(identity)
        self.kind = (bool(self.sessions.agentic[r]), min(int(self.sessions.turn[r]), 15))
        self.blocks = 0
        super().serve(r)
        category = self.categories.setdefault(self.kind, Category())
        category.released = category.released * 0.999 + self.blocks
        category.reused *= 0.999
        category.seconds *= 0.999

    def forget(self, identity: int) -> None:
        self.ghosts = [None if g is not None and g.identity == identity else g for g in self.ghosts]

    def learned(self) -> list[float]:
        """All that the policy has learned: three numbers a category, a class of no use before and after, the life."""
        rows = [0.0] * 3
        for agentic in (False, True):
            for turn in range(16):
                known = self.categories.get((agentic, turn), Category())
                rows += [known.released, known.reused, known.seconds]
        return [*rows, 0.0, 0.0, 0.0, self.life or 0.0, float(sum(self.ages)), float(len(self.ages))]

    def route(self, slot: Slot, r: int) -> None:
        self.of[slot.inserted] = self.kind
        self.blocks += 1

    def evict_one(self) -> int:
        before = [(i, s) for i, s in enumerate(self.slots) if s is not None]
        victim = super().evict_one()
        gone = next(s for i, s in before if i == victim)
        self.ages.append(max(self.now - gone.time, 1e-3))
        self.forget(gone.identity)
        self.ghosts = [*self.ghosts, Ghost(gone.identity, self.of[gone.inserted], gone.time)][-len(self.slots) :]
        return victim

    def score(self, slot: Slot) -> float:
        known = self.categories.get(self.of[slot.inserted], Category())
        reused = known.reused + 1.0
        rate = reused / (known.seconds + 60.0)
        share = min(reused / (known.released + 2.0), 1.0)
        t = self.now - slot.time
        within = 1.0 if self.life is None else -math.expm1(-rate * self.life)
        # The logarithm of share x (exp(-rate t) - exp(-rate (t + life))).
        return math.log(share) + math.log(within) - rate * t


REFERENCES: dict[str, type[NaivePool]] = {
    "tlru": NaiveTLRU,
    "lpc": NaiveLPC,
    "marconi": NaiveMarconi,
    "workload_aware": NaiveWorkloadAware,
}
