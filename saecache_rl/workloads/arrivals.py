"""When requests arrive: as recorded, or session by session from a process that the user names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from saecache_rl.errors import InputError
from saecache_rl.workloads.options import ANY, NOT_NEGATIVE, POSITIVE, Bounds, choice, number, whole

Reals = npt.NDArray[np.float64]

#: The options of a workload that say when its requests arrive.
OPTIONS = (
    "arrivals",
    "session_rate",
    "arrivals_cv",
    "gap_mu",
    "gap_sigma",
    "tool_gap_mu",
    "tool_gap_sigma",
    "seed",
)
DRAWN = ("poisson", "gamma")


class Times(NamedTuple):
    """What a source says of a session's requests (R of them).

    seconds: (R,) from any origin; nan where unknown.
    after_tool: (R,) the request before ended in a tool call, so that a tool answers, not a person.
    """

    seconds: Reals
    after_tool: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Arrivals:
    """How sessions start, and what the gaps between their requests are where the source has none.

    kind: "recorded"; "poisson", with session_rate starts a second; "gamma", likewise, the gaps between starts of
        coefficient of variation `cv`: above 1 they come in bursts.
    gap, tool_gap: mean and standard deviation of ln seconds between requests, before a person's and before a tool's.
    """

    kind: str
    rate: float | None
    cv: float
    gap: tuple[float, float]
    tool_gap: tuple[float, float]
    seed: int

    @staticmethod
    def read(options: Mapping[str, Any], recorded: bool, advice: str = "") -> Arrivals:
        """Read the options named in `OPTIONS`.

        Args:
            options: of the workload.
            recorded: the source may have times.
            advice: what else to tell whoever asks for recorded times in vain.

        Raises:
            InputError: none is chosen, or an impossible one.
        """
        kind, rate = options["arrivals"], options["session_rate"]
        how = (
            "workload.arrivals=poisson workload.session_rate=RATE (session starts a second), or gamma for bursts, with "
            "workload.arrivals_cv; the gaps within a session are workload.gap_mu … workload.tool_gap_sigma"
        )
        if kind is None:
            raise InputError(f"workload.arrivals=null: the data has no times; say how sessions arrive: {how}")
        if kind == "recorded" and not recorded:
            raise InputError(f"workload.arrivals=recorded: the data has no times{advice}; say how they arrive: {how}")
        choice("workload.arrivals", kind, ("recorded", *DRAWN) if recorded else DRAWN)
        if kind in DRAWN and rate is None:
            raise InputError(f"workload.session_rate=null: arrivals={kind} needs it, in session starts a second")
        return Arrivals(
            kind=str(kind),
            rate=None if rate is None else number("workload.session_rate", rate, POSITIVE),
            cv=number("workload.arrivals_cv", options["arrivals_cv"], POSITIVE),
            gap=_log_normal(options, "gap"),
            tool_gap=_log_normal(options, "tool_gap"),
            seed=whole("workload.seed", options["seed"], Bounds(0, 2**63 - 1, whole=True)),
        )

    def place(self, sessions: Sequence[Times], source: str) -> tuple[list[Reals], dict[str, str]]:
        """Return the seconds of each session's requests from the start of the trace, and notes on how they came about.

        Sessions start in their order in the source. Gaps that the source has are kept, whatever the process.

        Raises:
            InputError: recorded times are asked for and a session has none.
        """
        random = np.random.Generator(np.random.PCG64(self.seed))
        starts: Reals
        if self.kind == "recorded":
            starts = np.array([s.seconds[0] for s in sessions])
            if not np.isfinite(starts).all():
                raise InputError(f"{source}: some requests have no time; choose workload.arrivals=poisson or gamma")
            starts -= starts.min()
        else:
            assert self.rate is not None
            shape = 1.0 if self.kind == "poisson" else self.cv**-2
            starts = np.cumsum(random.gamma(shape, 1.0 / shape, len(sessions))) / self.rate
            starts -= starts[0]
        drawn = kept = falls = 0
        placed = []
        for start, times in zip(starts, sessions, strict=True):
            own = np.diff(times.seconds)
            unknown = ~np.isfinite(own)
            normal = random.standard_normal(len(own))  # drawn whether needed or not: one session changes no other
            mu = np.where(times.after_tool[1:], self.tool_gap[0], self.gap[0])
            sigma = np.where(times.after_tool[1:], self.tool_gap[1], self.gap[1])
            falls += int(np.count_nonzero(own < 0))
            drawn += int(np.count_nonzero(unknown))
            kept += int(np.count_nonzero(~unknown))
            gaps = np.where(unknown, np.exp(np.clip(mu + sigma * normal, -20, 20)), np.maximum(own, 0.0))
            placed.append(start + np.concatenate(([0.0], np.cumsum(gaps))))
        notes = {"arrivals": self._says()}
        notes["gaps_within_sessions"] = f"{kept} of the data" if kept or not drawn else "none of the data"
        if drawn:
            notes["gaps_within_sessions"] += (
                f", {drawn} drawn from log-normals of ln seconds {self.gap[0]:g}, {self.gap[1]:g} before a person's "
                f"request and {self.tool_gap[0]:g}, {self.tool_gap[1]:g} after a tool call"
            )
        notes["times_that_fall"] = f"{falls} (taken as equal)" if falls else "0"
        return placed, notes

    def _says(self) -> str:
        if self.kind == "recorded":
            return "recorded"
        shape = "" if self.kind == "poisson" else f" of coefficient of variation {self.cv:g}"
        return f"{self.kind}{shape}, {self.rate:g} session starts a second, seed {self.seed}"


def _log_normal(options: Mapping[str, Any], name: str) -> tuple[float, float]:
    mu = number(f"workload.{name}_mu", options[f"{name}_mu"], ANY)
    return mu, number(f"workload.{name}_sigma", options[f"{name}_sigma"], NOT_NEGATIVE)
