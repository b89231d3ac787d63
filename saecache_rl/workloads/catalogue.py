"""The workloads of conf/workload by name, for use without a command line."""

from __future__ import annotations

from typing import Any

from saecache_rl.errors import InputError, nearest
from saecache_rl.workloads.trace import Trace

_CONF = "pkg://saecache_rl.conf"


def names() -> list[str]:
    """Return the names of all workloads, sorted."""
    from importlib.resources import files

    folder = files("saecache_rl.conf").joinpath("workload")
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def make(name: str, *overrides: str) -> Trace:
    """Make the workload `name`, for instance ``make("agentic_shift", "requests=2000", "chat.gap_mu=4")``.

    Raises:
        InputError: no such workload or option, or an impossible value.
    """
    from hydra.errors import InstantiationException
    from hydra.utils import instantiate

    try:
        trace = instantiate(options(name, *overrides))
    except InstantiationException as error:
        if isinstance(error.__cause__, InputError):
            raise error.__cause__ from None
        raise
    assert isinstance(trace, Trace)
    return trace


def options(name: str, *overrides: str) -> Any:
    """Return the workload's options (an OmegaConf node) as its YAML and the overrides (``key=value``) give them."""
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    known = names()
    if name not in known:
        raise InputError(f"workload {name}: unknown{nearest(name, known)}; known: {', '.join(known)}")
    node = _compose(name)
    OmegaConf.set_struct(node, True)
    for override in overrides:
        key, _, value = override.partition("=")
        try:
            OmegaConf.update(node, key, yaml.safe_load(value), merge=True, force_add=False)
        except OmegaConfBaseException:
            listed = [str(k) for k in node]
            raise InputError(
                f"workload.{key}: no such option{nearest(key, listed)}; known: {', '.join(listed)}"
            ) from None
    return node


def _compose(name: str) -> Any:
    from importlib.resources import files

    from omegaconf import OmegaConf

    folder = files("saecache_rl.conf").joinpath("workload")
    node: Any = OmegaConf.create(folder.joinpath(f"{name}.yaml").read_text(encoding="utf-8"))
    merged: Any = OmegaConf.create()
    for entry in node.pop("defaults", ["_self_"]):
        if entry != "_self_":
            source, _, package = entry.partition("@")
            part = OmegaConf.create(folder.joinpath(f"{source}.yaml").read_text(encoding="utf-8"))
            merged = OmegaConf.merge(merged, part if package == "_here_" else {package: part})
        else:
            merged = OmegaConf.merge(merged, node)
    return merged
