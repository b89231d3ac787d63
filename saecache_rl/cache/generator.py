"""The random generator of compiled code: samplers and policies keep its state, 64 bits, among theirs."""

from __future__ import annotations

import numpy as np
from numba import types

from saecache_rl.compiled import kernel


@kernel(types.uint64(types.uint64), forceinline=True)
def next_state(state):  # type: ignore[no-untyped-def]
    """A 64-bit linear congruential step with Knuth's MMIX constants (TAOCP 2, 3.3.4); use the high bits."""
    return state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
