"""What a cache holds, by queue and token type, as text and as a picture; candidates as a table. NumPy only."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from saecache_rl.engines.stats import WindowStats
from saecache_rl.vocabulary import QUEUE_NAMES, TOKEN_TYPE_NAMES

#: One colour a token type (Okabe and Ito's palette, told apart without colour vision), and the free part.
COLOURS = np.array(
    [(0, 114, 178), (86, 180, 233), (230, 159, 0), (0, 158, 115), (213, 94, 0), (204, 121, 167), (120, 120, 120)],
    np.uint8,
)
FREE = np.array((235, 235, 235), np.uint8)
WIDTH, BAR, SPACE = 256, 24, 4


def write(held: npt.NDArray[np.int64], num_blocks: int, stats: WindowStats) -> str:
    """Return a table of resident blocks; `held` is (4, 7), by queue and token type."""
    ratio = f"window {stats.window}, token hit ratio {stats.token_hit_ratio:.3f}"
    head = f"{ratio}, {held.sum()} of {num_blocks} blocks held"
    names = [*TOKEN_TYPE_NAMES, "all"]
    lines = [head, " " * 12 + "".join(f"{name:>16}" for name in names)]
    for queue, row in zip([*QUEUE_NAMES, "all"], [*held, held.sum(axis=0)], strict=True):
        lines.append(f"{queue:<12}" + "".join(f"{count:>16}" for count in [*row, row.sum()]))
    return "\n".join(lines) + "\n"


def write_candidates(candidates: npt.NDArray[np.void], *, now: float, request: int, needed: int) -> str:
    """Return a table of candidates, (n,) BLOCK records: the action that evicts each, and what is known of it.

    Args:
        candidates: the least recent first.
        now: seconds, of the clock that the records' times are of.
        request: number of the request that needs room.
        needed: slots that it is known to need.
    """
    lines = [f"request {request} needs {needed} more slots; {len(candidates)} candidates"]
    lines.append("action  queue       type             seconds ago  accesses  offset  session")
    for action, block in enumerate(candidates):
        queue, kind = QUEUE_NAMES[block["queue"]], TOKEN_TYPE_NAMES[block["token_type"]]
        numbers = f"{now - block['time']:>12.3f}{block['count']:>10}{block['offset']:>8}{block['session']:>9}"
        lines.append(f"{action:>6}  {queue:<12}{kind:<16}{numbers}")
    return "\n".join(lines) + "\n"


def draw(held: npt.NDArray[np.int64], num_blocks: int) -> npt.NDArray[np.uint8]:
    """Return an RGB picture, (height, width, 3): a bar for the whole cache, then one a queue, coloured by token type.

    A bar's full width is the capacity.
    """
    bars = np.concatenate([held.sum(axis=0, keepdims=True), held])
    picture = np.full((len(bars) * (BAR + SPACE) + SPACE, WIDTH + 2 * SPACE, 3), 255, np.uint8)
    ends = np.rint(np.cumsum(bars, axis=1) * (WIDTH / num_blocks)).astype(np.int64)
    for i, row in enumerate(ends):
        bar = picture[SPACE + i * (BAR + SPACE) :][:BAR, SPACE : SPACE + WIDTH]
        bar[:] = FREE
        for kind, (start, end) in enumerate(zip([0, *row[:-1]], row, strict=True)):
            bar[:, start:end] = COLOURS[kind]
    return picture
