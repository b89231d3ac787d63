"""The decorator of every compiled function: numba's nopython mode, compiled at import, kept on disk.

numba's own disk cache asks only whether the file of the function itself has changed, so a kernel would go on
running an old version of a helper that it inlined from another file. Here the stamp of an entry is a digest of the
sources of all compiled code of the package, and of the function's own file: after any edit the entry is made anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba

_PACKAGE = Path(__file__).parent
#: Compiled code calls only what stands in its own folder, in the folders above that, and in these.
_ALSO_CALLS = {"engines": ("cache",), "envs": ("cache", "engines")}


@cache
def _digest(file: Path) -> str:
    """Digest of all sources that the compiled functions of `file` can have inlined."""
    sha = hashlib.sha256(numba.__version__.encode() + file.read_bytes())
    folders = [_PACKAGE / "cache"]  # a policy of somebody's own calls the cache
    if file.is_relative_to(_PACKAGE):
        inside = file.relative_to(_PACKAGE).parts[:-1]
        folders = [_PACKAGE.joinpath(*inside[: depth + 1]) for depth in range(len(inside))]
        folders += [_PACKAGE / folder for folder in _ALSO_CALLS.get(inside[0] if inside else "", ())]
    sources = [source for folder in folders for source in sorted(folder.glob("*.py"))]
    for source in [*sources, *(_PACKAGE / name for name in ("vocabulary.py", "compiled.py", "handles.py"))]:
        sha.update(source.read_bytes())
    return sha.hexdigest()


def compiled(signature: Any = None, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile a function with numba: at once for `signature`, else at its first call for the types it gets.

    Args:
        signature: a numba signature, for instance ``types.int64(types.int32[::1])``. Functions that a policy hands to
            the pool need one, and so does every entry point from Python, to keep a second start quick.
        options: passed on to `numba.njit`.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        dispatcher = numba.njit(**options)(function)
        dispatcher.enable_caching()
        dispatcher._cache._cache_file._source_stamp = _digest(Path(function.__code__.co_filename))
        if signature is not None:
            dispatcher.compile(signature)
            dispatcher.disable_compile()
        return dispatcher  # type: ignore[no-any-return]

    return decorate


def kernel(signature: Any = None, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`compiled` for the pool, the policies and the engine's loop: code that makes no array.

    numba then leaves out the counting of references to the some twenty arrays that each call passes on, which would
    cost more than the work itself.
    """
    return compiled(signature, _nrt=False, **options)
