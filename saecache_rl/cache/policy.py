"""The seam of a policy: what it tells the pool about a block, in four compiled functions.

The pool keeps the candidates (leaves, see `saecache_rl.cache.pool`) in a few *classes*. At release the policy gives
every block a class and a key. In an *ordered* class the score must not fall as the key grows, so only the class's
lowest key can be the victim and only it is scored; in a *lazy* class the policy's score can also tell the lowest
that it will be for a while (``cache.pool[0].horizon``), so that few are scored; in any other every candidate is scored.
LRU is one ordered class; SAECache has one for each (queue, token type) and shallow structural offset; a policy with
an arbitrary score has one class without order.

A new policy is one module with a `Policy` subclass and one YAML file that names it:

    class MRU(Policy):
        name = "mru"

        def functions(self) -> Functions:
            return Functions(on_release=on_release)

    @kernel(ON_RELEASE)
    def on_release(cache, chain, size):
        for i in range(size):
            cache.blocks[chain[i]].key = -cache.pool[0].access
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from saecache_rl.cache.layout import ON_ACCESS, ON_EVICT, ON_RELEASE, SCORE
from saecache_rl.cache.params import ParamSpace, PolicyParams
from saecache_rl.compiled import kernel

if TYPE_CHECKING:
    from saecache_rl.workloads.trace import Trace


@kernel(SCORE)
def key_is_score(cache, slots, size, scores):  # type: ignore[no-untyped-def]
    """Score of a policy whose key already is one."""
    for i in range(size):
        scores[i] = cache.blocks[slots[i]].key


@kernel(ON_ACCESS)
def no_access(cache, chain, hits, missed):  # type: ignore[no-untyped-def]
    """Do nothing at an access."""


@kernel(ON_EVICT)
def no_evict(cache, victims, size):  # type: ignore[no-untyped-def]
    """Do nothing at an eviction."""


@kernel(ON_RELEASE)
def key_is_release(cache, chain, size):  # type: ignore[no-untyped-def]
    """Key of LRU: the number of the block's latest release."""
    release = cache.pool[0].release
    for i in range(size):
        cache.blocks[chain[i]].key = release


@dataclass(frozen=True)
class Functions:
    """The compiled functions of a policy, each of the signature that `saecache_rl.cache.layout` names.

    Attributes:
        score: SCORE, ``(cache, slots, size, scores)``: write the score of ``slots[:size]`` at ``cache.pool[0].now``
            into `scores`; the lowest is evicted, ties go to the deeper, then the older block. Not called with one
            ordered class.
        on_access: ON_ACCESS, ``(cache, chain, hits, missed)``: a scheduled request (``cache.request[0]``) has matched
            ``chain[:hits]``; `missed` are the identities of its prompt's other full blocks. Called after the pool has
            updated time, access number and count of what was matched, before anything is evicted for the request.
        on_release: ON_RELEASE, ``(cache, chain, size)``: the request is over; ``chain[:size]`` are the slots of its
            full blocks, first to last. Sets `key`, and `cls` and `queue` where the policy has several.
        on_evict: ON_EVICT, ``(cache, victims, size)``: these slots are chosen, in order; their records are still whole.
            A *stepwise* policy's is called with size 0 when a victim is to be chosen, and with 1 once it is evicted.
    """

    score: Any = key_is_score
    on_access: Any = no_access
    on_release: Any = key_is_release
    on_evict: Any = no_evict


class Policy:
    """What a policy is outside compiled code: a name, its classes, its parameters, and how much state it needs.

    A subclass is immutable configuration: all of a run's state lives in the arrays that it sizes here.
    """

    #: Name in results.
    name: ClassVar[str]
    #: True where it reads what a live engine could not know; every output says so.
    oracle: ClassVar[bool] = False
    #: True where it reads `continues` or `probability` of `cache.request[0]`: a predictor that sees ahead then makes
    #: its result an oracle's.
    uses_predictor: ClassVar[bool] = False
    #: True where a choice depends on the one before it, even in one request: all heads are then scored for each victim,
    #: and before that the policy may move candidates (`Functions.on_evict`). Some five times the cost of a request.
    stepwise: ClassVar[bool] = False
    #: True: leaves only, so that resident blocks are whole prefixes.
    closed: ClassVar[bool] = True
    #: True where `cache.reals` is what the policy itself has learned of the traffic, fit for any pool: it outlives the
    #: blocks when the pool is emptied, and a server keeps it over a restart.
    learns: ClassVar[bool] = False
    #: Remembered evictions, as a multiple of the number of blocks.
    ghosts: ClassVar[float] = 0.0

    def functions(self) -> Functions:
        """The compiled functions."""
        return Functions()

    def classes(self) -> tuple[int, ...]:
        """For each class of candidates, whether it is ordered by key, or LAZY (`victims`); at most 255."""
        return (True,)

    def space(self) -> ParamSpace:
        """The parameters that an agent may move."""
        return ParamSpace()

    def encode(self, params: PolicyParams) -> npt.NDArray[np.float64]:
        """The parameters as the compiled functions read them, always of one length."""
        return params.values.copy()

    def state(self, num_blocks: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """The policy's own state (`cache.reals`, `cache.ints`) before the first request."""
        return np.zeros(0, np.float64), np.zeros(0, np.int64)

    def foresee(self, trace: Trace) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """What an oracle reads: `cache.future`, and the first of `cache.ints`. Only called where `oracle` is set."""
        raise NotImplementedError(f"policy {self.name} is marked as an oracle and has to say what it foresees")
