"""From a name of conf/<group>, or a mapping with `_target_`, to the object; inside and outside a Hydra application."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.utils import instantiate

from saecache_rl.errors import InputError, nearest


def make(group: str, value: str | Mapping[str, Any]) -> Any:
    """Instantiate a name of a Hydra group, or a mapping with `_target_`.

    Raises:
        InputError: an unknown name, a mapping without `_target_`, or options that its target refuses.
    """
    settings = by_name(group, value) if isinstance(value, str) else value
    if "_target_" not in settings:
        raise InputError(
            f"{group}: a mapping needs '_target_', the dotted name of what to call, not {sorted(settings)}"
        )
    try:
        return instantiate(settings, _convert_="all")
    except HydraException as error:
        cause = error.__cause__
        while cause is not None and not isinstance(cause, InputError):
            cause = cause.__cause__
        if cause is not None:
            raise cause from None
        raise InputError(f"{group}: {settings['_target_']} can't be made: {' '.join(str(error).split())}") from error


def by_name(group: str, name: str) -> Mapping[str, Any]:
    """Compose ``conf/<group>/<name>.yaml``.

    Raises:
        InputError: there is none; the message names those that exist.
    """
    running = GlobalHydra.instance().hydra  # of the application that we may be in
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module("saecache_rl.conf", version_base="1.3"):
            known = GlobalHydra.instance().config_loader().get_group_options(group)
            if name not in known:
                raise InputError(f"no {group} '{name}'{nearest(name, known)}; there are {', '.join(known)}")
            composed: Mapping[str, Any] = compose(overrides=[f"+{group}={name}"])[group]
            return composed
    except HydraException as error:
        raise InputError(f"{group} '{name}' can't be composed: {' '.join(str(error).split())}") from error
    finally:
        GlobalHydra.instance().hydra = running
