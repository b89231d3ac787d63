"""Random numbers of policies: a generator whose state stands in `cache.ints`, so that a saved run goes on the same."""

from __future__ import annotations

import numpy as np
from numba import types

from saecache_rl.cache.generator import next_state
from saecache_rl.cache.layout import CACHE, INT
from saecache_rl.compiled import kernel
from saecache_rl.errors import InputError


@kernel(types.float64(CACHE, INT), forceinline=True)
def draw(cache, place):  # type: ignore[no-untyped-def]
    """Uniform in [0, 1), from the generator at ``cache.ints[place]``.

    The high bits of the generator's next state.
    """
    state = next_state(np.uint64(cache.ints[place]))
    cache.ints[place] = np.int64(state)
    return np.float64(state >> np.uint64(11)) * 2.0**-53


def checked_seed(policy: str, seed: int) -> int:
    """Return `seed`.

    Raises:
        InputError: it is negative, or more than 2^63 - 1.
    """
    if not 0 <= seed < 2**63:
        raise InputError(f"policy {policy}: seed is {seed}; 0 to 2^63 - 1 are possible")
    return seed
