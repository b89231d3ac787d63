"""Second implementations of the general-purpose peers: lists, dictionaries and scans, no code of theirs.

Each keeps its queues whole, inner blocks included, and finds a victim by walking them for the first leaf.
"""

from __future__ import annotations

import math

from tests.cache.naive import NaivePool, Slot


class Peer(NaivePool):
    """Common to all: recency among leaves, and a generator."""

    random = 0  # seed

    def leaves(self, found: list[int]) -> dict[Slot, int]:
        """The candidates' slots, and where they stand."""
        return {s: i for i in found if (s := self.slots[i]) is not None}

    def new(self, chain: list[Slot]) -> list[Slot]:
        """What the request has inserted, the deepest first."""
        return [s for s in reversed(chain) if s.count == 1]

    def resident(self, identity: int) -> bool:
        return any(s is not None and s.identity == identity for s in self.slots)

    def draw(self) -> float:
        self.random = (self.random * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.random >> 11) / 2**53


def recency(slot: Slot) -> tuple[int, int, int]:
    return (slot.release, -slot.offset, slot.access)


class NaiveFIFO(Peer):
    queue: list[Slot]

    def released(self, chain: list[Slot], r: int) -> None:
        self.queue = [*getattr(self, "queue", []), *self.new(chain)]

    def choose(self, found: list[int]) -> int:
        leaves = self.leaves(found)
        return next(leaves[s] for s in self.queue if s in leaves)

    def gone(self, slot: Slot) -> None:
        self.queue.remove(slot)


class NaiveGDSF(Peer):
    def released(self, chain: list[Slot], r: int) -> None:
        size = self.trace.block_size
        for s in chain:
            s.key = s.count * (1.0 + (s.offset + 0.5) * (size / self.params["cost.context"])) + self.age

    def choose(self, found: list[int]) -> int:
        leaves = self.leaves(found)
        return leaves[min(leaves, key=lambda s: (s.key, -s.offset, s.access))]

    def gone(self, slot: Slot) -> None:
        self.age = max(self.age, slot.key)


class NaiveSLRU(Peer):
    segments: list[list[Slot]]

    def accessed(self, chain: list[Slot], missed: list[int]) -> None:
        if not hasattr(self, "segments"):
            self.segments = [[] for _ in range(4)]
        for s in reversed(chain):
            place = next(n for n, segment in enumerate(self.segments) if s in segment)
            self.segments[place].remove(s)
            self.segments[min(place + 1, 3)].append(s)
        for n in (3, 2, 1):
            while len(self.segments[n]) > len(self.slots) // 4:
                self.segments[n - 1].append(self.segments[n].pop(0))

    def released(self, chain: list[Slot], r: int) -> None:
        self.segments[0] += self.new(chain)

    def choose(self, found: list[int]) -> int:
        leaves = self.leaves(found)
        return next(leaves[s] for segment in self.segments for s in segment if s in leaves)

    def gone(self, slot: Slot) -> None:
        next(segment for segment in self.segments if slot in segment).remove(slot)


class NaiveS3FIFO(Peer):
    small: list[Slot]

    def accessed(self, chain: list[Slot], missed: list[int]) -> None:
        if not hasattr(self, "small"):
            self.small, self.main, self.ghosts = [], [], list[int]()
            self.freq: dict[Slot, int] = {}
        for s in chain:
            self.freq[s] = min(self.freq[s] + 1, 3)
        self.wanted = {i for i in missed if i in self.ghosts}
        self.ghosts = [i for i in self.ghosts if i not in self.wanted]
        self.coming = len(missed) - len(self.wanted)

    def to_main(self, slot: Slot) -> None:
        while slot in self.small:
            self.small.remove(slot)
            self.main.append(slot)
            self.freq[slot] = 0
            above = self.copies(int(self.trace.parent[slot.identity]))
            if above:
                slot = self.slots[above[0]]  # type: ignore[assignment]

    def released(self, chain: list[Slot], r: int) -> None:
        wanted_below = False
        for s in reversed(chain):
            if s.count == 1:
                wanted_below |= s.identity in self.wanted
                self.ghosts = [i for i in self.ghosts if i != s.identity]
                (self.main if wanted_below else self.small).append(s)
                self.freq[s] = 0
            elif wanted_below:
                self.to_main(s)
            wanted_below |= s in self.main
        self.coming = 0

    def choose(self, found: list[int]) -> int:
        leaves = self.leaves(found)
        room = max(int(self.params["small.share"] * len(self.slots)), 1)
        while True:
            small = [s for s in self.small if s in leaves]
            main = [s for s in self.main if s in leaves]
            if small and (len(self.small) + self.coming >= room or not main):
                if self.freq[small[0]] < 2:
                    return leaves[small[0]]
                self.to_main(small[0])
            elif self.freq[main[0]] == 0:
                return leaves[main[0]]
            else:
                self.freq[main[0]] -= 1
                self.main.remove(main[0])
                self.main.append(main[0])

    def gone(self, slot: Slot) -> None:
        if slot in self.main:
            self.main.remove(slot)
            return
        self.small.remove(slot)
        if not self.resident(slot.identity):
            self.ghosts = [*(i for i in self.ghosts if i != slot.identity), slot.identity]
            limit = int(0.9 * len(self.slots))
            self.ghosts = self.ghosts[len(self.ghosts) - limit :] if len(self.ghosts) > limit else self.ghosts


class NaiveARC(Peer):
    t1: list[Slot]

    def accessed(self, chain: list[Slot], missed: list[int]) -> None:
        if not hasattr(self, "t1"):
            self.t1, self.t2, self.b1, self.b2, self.p = [], [], list[int](), list[int](), 0.0
        for s in chain:
            if s in self.t1:
                self.t1.remove(s)
                self.t2.append(s)
        self.wanted = set()
        for i in missed:
            if i in self.b1:
                self.p = min(self.p + max(len(self.b2) / len(self.b1), 1.0), float(len(self.slots)))
                self.b1.remove(i)
                self.wanted.add(i)
            elif i in self.b2:
                self.p = max(self.p - max(len(self.b1) / len(self.b2), 1.0), 0.0)
                self.b2.remove(i)
                self.wanted.add(i)
        self.coming = len(missed) - len(self.wanted)

    def bound(self) -> None:
        while self.b1 and len(self.t1) + len(self.b1) > len(self.slots):
            del self.b1[0]
        while self.b2 and len(self.t1) + len(self.t2) + len(self.b1) + len(self.b2) > 2 * len(self.slots):
            del self.b2[0]

    def forget(self, identity: int) -> None:
        self.b1 = [i for i in self.b1 if i != identity]
        self.b2 = [i for i in self.b2 if i != identity]

    def released(self, chain: list[Slot], r: int) -> None:
        for s in self.new(chain):
            (self.t2 if s.identity in self.wanted else self.t1).append(s)
            self.forget(s.identity)
        self.coming = 0
        self.bound()

    def choose(self, found: list[int]) -> int:
        leaves = self.leaves(found)
        first, second = [s for s in self.t1 if s in leaves], [s for s in self.t2 if s in leaves]
        from_first = first and (len(self.t1) + self.coming > self.p or not second)
        return leaves[min(first if from_first else second, key=recency)]

    def gone(self, slot: Slot) -> None:
        mine, ghosts = (self.t1, 1) if slot in self.t1 else (self.t2, 2)
        mine.remove(slot)
        if not self.resident(slot.identity):
            self.forget(slot.identity)
            (self.b1 if ghosts == 1 else self.b2).append(slot.identity)
            self.bound()


class NaiveLeCaR(Peer):
    weight, clock = 0.5, 0

    def accessed(self, chain: list[Slot], missed: list[int]) -> None:
        if not hasattr(self, "freq"):
            self.freq: dict[Slot, int] = {}
            self.history: list[list[tuple[int, int, int]]] = [[], []]  # LRU's and LFU's: identity, frequency, time
        self.wanted: dict[int, int] = {}
        for s in chain:
            self.freq[s] += 1
        for i in missed:
            for expert in (0, 1):
                for entry in [e for e in self.history[expert] if e[0] == i]:
                    discount = 0.005 ** ((self.clock - entry[2]) / len(self.slots))
                    weights = [self.weight, 1.0 - self.weight]
                    weights[expert] *= math.exp(-self.params["rate"] * discount)
                    self.weight = min(max(weights[0] / sum(weights), 0.01), 0.99)
                    self.wanted[i] = entry[1]
            self.drop(i)

    def drop(self, identity: int) -> None:
        self.history = [[e for e in entries if e[0] != identity] for entries in self.history]

    def released(self, chain: list[Slot], r: int) -> None:
        for s in self.new(chain):
            self.freq[s] = self.wanted.get(s.identity, 0) + 1
            self.drop(s.identity)
        self.clock += len(chain)

    def choose(self, found: list[int]) -> int:
        leaves = self.leaves(found)
        least_recent = min(leaves, key=recency)
        least_frequent = min(leaves, key=lambda s: (min(self.freq[s], 128), *recency(s)))
        self.by: int | None = 0 if self.draw() < self.weight else 1
        chosen = least_frequent if self.by else least_recent
        if least_recent is least_frequent:
            self.by = None
        return leaves[chosen]

    def gone(self, slot: Slot) -> None:
        if self.by is not None and not self.resident(slot.identity):
            self.drop(slot.identity)
            kept = [*self.history[self.by], (slot.identity, self.freq[slot], self.clock)]
            self.history[self.by] = kept[max(len(kept) - len(self.slots) // 2, 0) :]


class NaiveLHD(Peer):
    AGES, CLASSES = 512, 11
    clock = configured = 0

    def prepare(self) -> None:
        if hasattr(self, "last"):
            return
        self.last: dict[Slot, int] = {}  # clock at the last access
        self.ages: dict[Slot, tuple[int, int]] = {}  # the last two; None of a new block
        self.explorers: set[Slot] = set()
        self.hit = [[0.0] * self.AGES for _ in range(self.CLASSES)]
        self.evictions = [[0.0] * self.AGES for _ in range(self.CLASSES)]
        self.density = [[(c + 1) / (a + 1) for a in range(self.AGES)] for c in range(self.CLASSES)]
        self.next = len(self.slots)
        self.step = next(n for n in range(64) if 32 * 2**n >= len(self.slots))

    def steps(self, s: Slot) -> int:
        return min((self.clock - self.last[s]) // 2**self.step, self.AGES - 1)

    def cls(self, s: Slot) -> int:
        total = sum(self.ages[s])
        if total == 0:
            return self.CLASSES - 1
        return max(0, math.ceil(math.log2(self.AGES) - math.log2(total)))

    def accessed(self, chain: list[Slot], missed: list[int]) -> None:
        self.prepare()
        for s in chain:
            age = self.steps(s)
            self.hit[self.cls(s)][age] += 1
            self.ages[s] = (age, self.ages[s][0])
            self.last[s] = self.clock
            self.explorers.discard(s)

    def released(self, chain: list[Slot], r: int) -> None:
        explores = self.configured < 50 and self.draw() < 1 / 32
        self.clock += len(chain)
        for s in chain:
            if s.count == 1:
                self.ages[s] = (0, self.AGES)
            self.last[s] = self.clock
            if explores and len(self.explorers) < len(self.slots) // 100:
                self.explorers.add(s)
        if self.clock >= self.next:
            self.configured += 1
            self.next = self.clock + len(self.slots)
            for c in range(self.CLASSES):
                for counts in (self.hit, self.evictions):
                    counts[c] = [0.9 * n for n in counts[c]]
                hits = events = held = 0.0
                for a in reversed(range(self.AGES)):
                    hits += self.hit[c][a]
                    events += self.hit[c][a] + self.evictions[c][a]
                    held += events
                    self.density[c][a] = hits / held if events > 1e-5 else 0.0

    def choose(self, found: list[int]) -> int:
        leaves = self.leaves(found)

        def rank(s: Slot) -> tuple[float, int, int]:
            age = self.steps(s)
            density = self.density[self.cls(s)][age] + (s in self.explorers)
            return (-1.0 if age == self.AGES - 1 else density, -s.offset, s.access)

        return leaves[min(leaves, key=rank)]

    def gone(self, slot: Slot) -> None:
        self.evictions[self.cls(slot)][self.steps(slot)] += 1
        self.explorers.discard(slot)


#: The second implementation of each policy that has one of its own.
REFERENCES: dict[str, type[NaivePool]] = {
    "fifo": NaiveFIFO,
    "gdsf": NaiveGDSF,
    "slru": NaiveSLRU,
    "s3fifo": NaiveS3FIFO,
    "arc": NaiveARC,
    "lecar": NaiveLeCaR,
    "lhd": NaiveLHD,
}
