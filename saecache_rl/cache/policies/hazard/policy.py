"""The policy that joins the parts, and what of it can be set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from saecache_rl.cache.layout import LAZY, ON_EVICT, ON_RELEASE, SCORE
from saecache_rl.cache.params import Param, ParamSpace
from saecache_rl.cache.policies.hazard import features, index, learner, table
from saecache_rl.cache.policies.hazard.entries import drop_if_unheld, trim
from saecache_rl.cache.policies.hazard.guard import admit, choose, judge, leading, make_room
from saecache_rl.cache.policies.hazard.index import least_worth, place_of, worth
from saecache_rl.cache.policies.hazard.layout import AHEAD, IN_SHADOW, allocate, state_at, view
from saecache_rl.cache.policies.hazard.learner import ADDITIVE, TABLE, learn
from saecache_rl.cache.policies.hazard.segments import look_up, record, request_before
from saecache_rl.cache.policy import Functions, Policy
from saecache_rl.compiled import kernel
from saecache_rl.errors import InputError, nearest
from saecache_rl.handles import prefetch

#: Of a spare copy: below every index.
WORTHLESS = -1.0


@kernel(SCORE)
def score(cache, slots, size, scores):  # type: ignore[no-untyped-def]
    """The index of each block at its age, or its lowest until the horizon; with LRU in force, the latest release."""
    state = state_at(cache)
    blocks = cache.blocks
    now = cache.pool[0].now
    horizon = cache.pool[0].horizon
    by_hazard = state.head[0].by_hazard
    for i in range(size):
        if i + AHEAD < size:
            prefetch(state.entries, np.int64(state.slots[slots[i + AHEAD]].entry))
        slot = slots[i]
        if by_hazard == 0:
            scores[i] = state.slots[slot].release
            continue
        if cache.first[blocks[slot].identity] != slot:
            scores[i] = WORTHLESS
            continue
        entry = state.entries[state.slots[slot].entry]
        curve = np.int64(entry.curve)
        place = place_of(now - entry.time)
        if horizon > 0.0:
            scores[i] = least_worth(state.curves, curve, place, place_of(now + horizon - entry.time))
        else:
            scores[i] = worth(state.curves, curve, place)


@kernel(ON_RELEASE)
def on_release(cache, chain, size):  # type: ignore[no-untyped-def]
    """Learn up to now, let the shadows serve the request, then make its segments and their curves."""
    if size == 0:
        return
    state = state_at(cache)
    head = state.head[0]
    num_blocks = len(state.slots)
    for e in (head.lru_last, head.recent_last, head.oldest):  # for `trim`
        prefetch(state.entries, e)
    now = cache.blocks[chain[0]].time
    learn(state, cache.reals, cache.params, now)
    known = look_up(cache, state, chain, size)
    prompt = min(cache.request[0].prompt_blocks, size)
    before = request_before(state, known, prompt)
    held = 0
    if head.guarded == 1:
        judge(cache, state, chain, prompt, known)
    if head.by_hazard == 0:
        held = leading(state, size, IN_SHADOW)
        make_room(state, size, held, now)
    record(cache, state, chain, size, known, before, now, cache.reals)
    if head.by_hazard == 0:
        admit(state, size, held)
    trim(state, num_blocks)
    if head.guarded == 1:
        choose(cache, state)


@kernel(ON_EVICT)
def on_evict(cache, victims, size):  # type: ignore[no-untyped-def]
    """Entries learn that a slot of theirs is gone."""
    state = state_at(cache)
    for i in range(size):
        if i + AHEAD < size:
            prefetch(state.entries, np.int64(state.slots[victims[i + AHEAD]].entry))
        slot = state.slots[victims[i]]
        e = np.int64(slot.entry)
        slot.entry = -1
        if e >= 0:
            state.entries[e].copies -= 1
            drop_if_unheld(state, e)


_STEPS = (
    Param("step.base", 0.10, 1e-3, 1.0, "log", "AdaGrad step of the hazard of each age"),
    Param("step.region", 0.05, 1e-3, 1.0, "log", "AdaGrad step of a feature's weight for a region of ages"),
    Param("step.feature", 0.025, 1e-3, 1.0, "log", "AdaGrad step of a feature's weight for all ages"),
)
_GUARD = (
    Param("guard.window", 4000.0, 100.0, 1e5, "log", "requests that the guard looks back on"),
    Param("guard.margin", 0.0005, 1e-6, 0.1, "log", "share of the blocks asked for by which the index leads to return"),
    Param("guard.doubt", 0.5, 0.0, 4.0, "linear", "standard deviations, likewise"),
    Param("guard.loss", 0.0005, 1e-6, 0.1, "log", "share of the blocks asked for that the index may lose"),
    Param("guard.regret", 0.1, 0.0, 1.0, "linear", "share of the blocks asked for that LRU must miss though known"),
    Param("guard.misses", 30.0, 0.0, 1000.0, "linear", "or how many such misses of a typical size there must be"),
)
SPACE = ParamSpace(_STEPS)
GUARDED_SPACE = ParamSpace(_STEPS + _GUARD)
INDEX_KINDS = index.KINDS
MODELS = {"additive": ADDITIVE, "table": TABLE}
FEATURE_SETS = {"all": features.NAMES, "twelve": features.TWELVE}


def choice(option: str, name: str, known: Mapping[str, object]) -> str:
    """Return `name` if it is known.

    Raises:
        InputError: it is not.
    """
    if name not in known:
        raise InputError(f"policy hazard: {option} is '{name}'{nearest(name, known)}; one of {', '.join(known)}")
    return name


class Hazard(Policy):
    """Evicts the block whose Gittins index is lowest, from an online hazard of the time to its next use.

    Every block's time to next use is learned, also that of evicted blocks, as a function of features that are known
    when its request is released: `features`. The hazard gives each block a curve of its worth by age (`index`), and
    the leaf whose curve is lowest at its age goes. See `docs/adaptive.md`.
    """

    name = "hazard"
    learns = True
    guarded: ClassVar[bool] = False
    #: True where it is told of the future, through `cache.future`; see `oracle`.
    foresight: ClassVar[bool] = False

    def __init__(self, features: str = "all", index: str = "gittins", model: str = "additive") -> None:
        """Choose the features (all, twelve), the index (gittins, forever, return, hazard), the model (additive, table).

        Raises:
            InputError: another name.
        """
        self.features = choice("features", features, FEATURE_SETS)
        self.index = choice("index", index, INDEX_KINDS)
        self.model = choice("model", model, MODELS)

    def functions(self) -> Functions:
        """The compiled functions."""
        return Functions(score=score, on_release=on_release, on_evict=on_evict)

    def classes(self) -> tuple[int, ...]:
        """One that is scored, lazily; with a guard another, ordered by release."""
        return (LAZY, True) if self.guarded else (LAZY,)

    def space(self) -> ParamSpace:
        """The learner's steps, and the guard's parameters."""
        return GUARDED_SPACE if self.guarded else SPACE

    def state(self, num_blocks: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """What the learner knows, and everything else."""
        ints = allocate(num_blocks, self.guarded)
        head = view(ints).head
        head["features"] = features.mask_of(FEATURE_SETS[self.features])
        head["index"] = index.KINDS[self.index]
        head["model"] = MODELS[self.model]
        head["guarded"] = self.guarded
        head["foresight"] = self.foresight
        head["by_hazard"] = not self.guarded
        return learner.start() if self.model == "additive" else np.zeros(table.NUM_REALS), ints


class GuardedHazard(Hazard):
    """`Hazard` that falls back to LRU's order where its shadow hits less than LRU's: the policy of agent `adaptive`."""

    name = "adaptive"
    guarded = True
