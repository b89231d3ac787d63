"""The one error that a user's command or input can cause."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """A mistake in a command or in its input: one line that names the place and the remedy.

    Commands print it without a traceback and end with exit code 2.
    """


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the name in `known` that is nearest to `name`, else an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else ""
