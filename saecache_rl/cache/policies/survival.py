"""The log-normal survival function, in logarithms so that it never underflows."""

from __future__ import annotations

import math

from numba import types

from saecache_rl.compiled import kernel

#: The floor of a logarithm whose argument is zero: above evict-first's minus infinity, below any other score.
LOG_ZERO = -1e300


@kernel(types.float64(types.float64, types.float64, types.float64))
def log_survival(seconds, mu, sigma):  # type: ignore[no-untyped-def]
    """ln(1 - F_LN(seconds; mu, sigma)) = ln(erfc(x) / 2), x = (ln seconds - mu) / (sigma sqrt 2).

    Beyond x = 20, where erfc nears the smallest double, its asymptotic series (Abramowitz and Stegun 7.1.23) to the
    term in x^-6, whose error there is below 1e-9.
    """
    x = (math.log(seconds) - mu) / (sigma * math.sqrt(2.0))
    if x < 20.0:
        return math.log(0.5 * math.erfc(x))
    y = 1.0 / (2.0 * x * x)
    series = 1.0 - y * (1.0 - 3.0 * y * (1.0 - 5.0 * y))
    return -x * x - math.log(2.0 * x * math.sqrt(math.pi)) + math.log(series)
