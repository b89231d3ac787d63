"""A policy that notes its victims, for comparing two engines block by block."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from saecache_rl.cache.layout import ON_EVICT
from saecache_rl.cache.params import ParamSpace, PolicyParams
from saecache_rl.cache.policy import Functions, Policy, no_evict
from saecache_rl.compiled import kernel
from saecache_rl.engines.simulator import Simulator


@kernel(ON_EVICT)
def _note(cache, victims, size):  # type: ignore[no-untyped-def]
    """Append (request, identity) of each victim to the policy's state; `ints[0]` counts them."""
    for i in range(size):
        at = 1 + 2 * cache.ints[0]
        if at + 1 < len(cache.ints):
            cache.ints[at] = cache.request[0].number
            cache.ints[at + 1] = cache.blocks[victims[i]].identity
        cache.ints[0] += 1


class Recorded(Policy):
    """Another policy, one that has no state of whole numbers and does nothing at an eviction, and its victims."""

    def __init__(self, policy: Policy, room: int) -> None:
        """Note up to `room` victims of `policy`."""
        if policy.functions().on_evict is not no_evict:
            raise ValueError(f"policy {policy.name} does something at an eviction")
        self._policy, self._room = policy, room
        self.__dict__.update(name=policy.name, closed=policy.closed, ghosts=policy.ghosts)

    def functions(self) -> Functions:
        """The policy's, with the note."""
        return replace(self._policy.functions(), on_evict=_note)

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
        return self._policy.state(num_blocks)[0], np.zeros(1 + 2 * self._room, np.int64)


def victims_by_request(simulator: Simulator) -> list[tuple[int, ...]]:
    """Identities evicted for each request, in order, of a simulator that ran under a `Recorded` policy."""
    ints: npt.NDArray[Any] = simulator.cache.ints
    pairs = ints[1 : 1 + 2 * int(ints[0])].reshape(-1, 2)
    if len(pairs) != ints[0]:
        raise ValueError(f"{ints[0]} victims, but room for {len(pairs)} alone")
    victims: list[list[int]] = [[] for _ in range(simulator.trace.num_requests)]
    for request, identity in pairs.tolist():
        victims[request].append(identity)
    return [tuple(v) for v in victims]
