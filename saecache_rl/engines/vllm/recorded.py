"""A policy that notes its victims, for comparing two engines block by block."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from saecache_rl.cache.layout import ON_EVICT
from saecache_rl.cache.params import ParamSpace, PolicyParams
from saecache_rl.cache.policy import Functions, Policy
from saecache_rl.compiled import kernel
from saecache_rl.engines.simulator import Simulator

# The end of the policy's state of whole numbers: room for victims, how much there is, and how many victims there were.
# A victim is one word: its request's number, then, in the lower half, its identity.
_EXTRA = 2


@kernel(ON_EVICT)
def _note(cache, victims, size):  # type: ignore[no-untyped-def]
    """Append each victim."""
    ints = cache.ints
    end = len(ints)
    room = ints[end - 2]
    for i in range(size):
        at = ints[end - 1]
        if at < room:
            ints[end - 2 - room + at] = (cache.request[0].number << 32) | np.int64(cache.blocks[victims[i]].identity)
        ints[end - 1] = at + 1


@cache
def _noting(on_evict: Any) -> Any:
    """A policy's function, after the note."""

    @kernel(ON_EVICT)
    def note_and_tell(cache, victims, size):  # type: ignore[no-untyped-def]
        _note(cache, victims, size)
        on_evict(cache, victims, size)

    return note_and_tell


class Recorded(Policy):
    """Another policy and its victims."""

    def __init__(self, policy: Policy, room: int) -> None:
        """Note up to `room` victims of `policy`."""
        self._policy, self._room = policy, room
        self.__dict__.update(name=policy.name, closed=policy.closed, stepwise=policy.stepwise, ghosts=policy.ghosts)

    def functions(self) -> Functions:
        """The policy's, with the note."""
        functions = self._policy.functions()
        return replace(functions, on_evict=_noting(functions.on_evict))

    def classes(self) -> tuple[int, ...]:
        """The policy's."""
        return self._policy.classes()

    def space(self) -> ParamSpace:
        """The policy's."""
        return self._policy.space()

    def encode(self, params: PolicyParams) -> npt.NDArray[np.float64]:
        """The policy's."""
        return self._policy.encode(params)

    def state(self, num_blocks: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """The policy's, with room for victims."""
        reals, own = self._policy.state(num_blocks)
        ints = np.zeros(len(own) + self._room + _EXTRA, np.int64)
        ints[: len(own)] = own
        ints[-2] = self._room
        return reals, ints


def victims_by_request(simulator: Simulator) -> list[npt.NDArray[np.int64]]:
    """Identities evicted for each request, in order, of a simulator that ran under a `Recorded` policy."""
    ints: npt.NDArray[Any] = simulator.cache.ints
    room, count = int(ints[-2]), int(ints[-1])
    if count > room:
        raise ValueError(f"{count} victims, but room for {room} alone")
    victims = ints[len(ints) - _EXTRA - room :][:count]
    ends = np.searchsorted(victims >> 32, np.arange(1, simulator.trace.num_requests))
    return np.split(victims & 0xFFFFFFFF, ends)
