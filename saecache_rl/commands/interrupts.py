"""Ctrl-C and SIGTERM between windows: a run is interrupted where its state is whole."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any


class HeldInterrupts:
    """While it is open, a first Ctrl-C or SIGTERM only sets `requested`; a second one raises KeyboardInterrupt.

    Outside the main thread signals are someone else's, and it does nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def _hold(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True

    def __enter__(self) -> HeldInterrupts:
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._before[number] = signal.signal(number, self._hold)
            except ValueError:
                break
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
