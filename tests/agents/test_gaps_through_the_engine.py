"""mu and sigma from the gaps of a trace, all the way: sessions, window statistics of the simulator, parameters."""

from __future__ import annotations

import numpy as np
import pytest

from saecache_rl.agents import Composite, LogNormalGaps
from saecache_rl.cache.policies.saecache import SAECache
from saecache_rl.engines.simulator import Simulator
from saecache_rl.engines.stats import WindowStats
from saecache_rl.vocabulary import TokenType
from saecache_rl.workloads.sessions import hint
from saecache_rl.workloads.trace import HAS_TOOLS
from tests.support import TraceBuilder


def learned(gaps: dict[str, np.ndarray], window: int = 100) -> dict[str, float]:
    """Serve sessions of up to 40 turns with these gaps; return the parameters at the end."""
    rows = []
    for kind, values in gaps.items():
        for first in range(0, max(1, len(values)), 40):
            arrivals = 10.0 * len(rows) / 41 + np.concatenate([[0.0], np.cumsum(values[first : first + 40])])
            rows += [(arrival, kind, f"{kind}{first}", turn) for turn, arrival in enumerate(arrivals)]
    builder, number = TraceBuilder(), {}
    for arrival, kind, session, turn in sorted(rows):
        flags = HAS_TOOLS if kind == "agentic" else 0
        which = number.setdefault(session, len(number))
        builder.request(arrival, [(1, TokenType.USER)] * 20, [(2, TokenType.RESPONSE)], which, turn, flags)
    trace = builder.trace()
    agent = Composite("gaps_only", SAECache(), gaps=LogNormalGaps())
    engine, stats = Simulator(trace, agent.policy, 100, hint(trace)), WindowStats.empty()
    while not engine.done:
        stats = engine.serve(window, agent.act(stats))
        agent.observe(stats, stats.token_hit_ratio)
    return agent.act(stats).as_dict()


@pytest.mark.parametrize("window", [13, 100, 2000])
def test_recovered_within_5_percent_from_5000_gaps(window: int) -> None:
    generator = np.random.default_rng(7)
    found = learned(
        {"chat": generator.lognormal(3.0, 1.4, 5000), "agentic": generator.lognormal(1.2, 0.6, 5000)}, window
    )
    names = ("mu.chat", "sigma.chat", "mu.agentic", "sigma.agentic")
    assert [found[name] for name in names] == pytest.approx([3.0, 1.4, 1.2, 0.6], rel=0.05)


@pytest.mark.parametrize("gaps", [[], [5.0], [8.0] * 400, [0.0] * 400], ids=["none", "one", "equal", "zero"])
def test_degenerate_gaps_change_nothing(gaps: list[float]) -> None:
    # Whole seconds, so that differences of arrivals are exact.
    found = learned({"chat": np.array(gaps), "agentic": np.array(gaps)})
    assert found == SAECache().space().start().as_dict()
