"""What is wrong with a command line's overrides, in one line with the nearest right one.

Hydra's own messages take several lines, advise `+key=value` for a misspelt key, and don't know that the workload is
given as ``+workload=NAME``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hydra import compose, initialize_config_module
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig
from omegaconf.errors import OmegaConfBaseException

from saecache_rl.errors import InputError, nearest

CONFIG_MODULE = "saecache_rl.conf"


def check(given: list[str], command: str) -> None:
    """Refuse what Hydra lets through: no workload at all, and additions that no option knows.

    Needs Hydra to be running.

    Raises:
        InputError: the first mistake.
    """
    additions = [o for o in given if o.startswith("+") and not o.startswith("+workload=")]
    if additions or not any(o.startswith("+workload=") for o in given):
        _find_mistake(given, command, _loader())


def explain(error: BaseException, command: str, given: list[str], needs_workload: bool = True) -> InputError:
    """Turn an error of Hydra's or OmegaConf's into one line for the user; Hydra need not be running."""
    if isinstance(error, OverrideParseException):
        return InputError(
            f"cannot read '{error.override}'; options are written name=value, and a text with = or spaces in quotes"
        )
    try:
        if GlobalHydra.instance().is_initialized():
            _find_mistake(given, command, _loader(), needs_workload)
        else:
            with initialize_config_module(CONFIG_MODULE, version_base="1.3"):
                _find_mistake(given, command, _loader(), needs_workload)
    except InputError as mistake:
        return mistake
    except (HydraException, OmegaConfBaseException):
        pass  # the message of the first error is the nearer one
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, name = error.missing_cfg_file.rpartition("/")
        return InputError(f"{group}={name}: {_unknown(name, error.options)}")
    reason = _line(error).split(" To append to your")[0]
    if error.__cause__ is not None and _line(error.__cause__) not in reason:
        reason += f": {_line(error.__cause__)}"
    return InputError(f"{reason}; see --help")


def known_options(group: str) -> list[str]:
    """The options of a group that the search path has; Hydra must be running."""
    return _options(_loader(), group)


def _loader() -> ConfigLoader:
    return GlobalHydra.instance().config_loader()


def _find_mistake(given: list[str], command: str, loader: ConfigLoader, needs_workload: bool = True) -> None:
    parsed = [OverridesParser.create().parse_override(o) for o in given]
    parsed = [p for p in parsed if not p.key_or_group.startswith("hydra")]
    if needs_workload:
        _check_workload(parsed, loader)
    groups, keys = [], []
    for override in parsed:
        if loader.get_group_options(override.key_or_group, None):
            groups.append(override)
            _check_choice(override, _options(loader, override.key_or_group))
        elif not override.is_delete():
            keys.append(override)
    plain = [p for p in groups if not p.is_sweep_override() and p.input_line is not None]
    own = [p for p in plain if p.is_add() or p.key_or_group.split("/")[0] in _choices(command, loader)]
    config = compose(command, overrides=[str(p.input_line) for p in own])
    for override in [p for p in plain if p not in own] + keys:
        _check_key(override.key_or_group, config)


def _choices(command: str, loader: ConfigLoader) -> set[str]:
    """The groups that a command chooses from by itself."""
    config = loader.load_configuration(command, [], RunMode.RUN)
    return {group.split("/")[0] for group in config.hydra.runtime.choices}


def _check_workload(parsed: list[Override], loader: ConfigLoader) -> None:
    known = _options(loader, "workload")
    form = f"+workload=NAME, with one of: {', '.join(known)}"
    chosen = [p for p in parsed if p.key_or_group == "workload"]
    if not chosen:
        raise InputError(f"no workload is chosen; give {form}")
    for override in chosen:
        for name in _values(override):
            if name not in known:
                raise InputError(f"workload={name}: unknown{nearest(name, known) or ';'} give {form}")
        if not override.is_add():
            raise InputError(f"'{override.input_line}' lacks its +; give {form}")


def _check_choice(override: Override, known: list[str]) -> None:
    for name in _values(override):
        if name not in known:
            raise InputError(f"{override.key_or_group}={name}: {_unknown(name, known)}")


def _check_key(key: str, config: DictConfig) -> None:
    node: object = config
    parts = key.split(".")
    for i, part in enumerate(parts):
        if isinstance(node, ListConfig):
            return  # Hydra says itself which index it lacks
        if not isinstance(node, DictConfig) or part not in node:
            place = ".".join(parts[:i])
            known = list(_keys(config))
            siblings = [k for k in known if k.startswith(f"{place}.")] if place else known
            inner = next((f"; did you mean '{k}'" for k in known if k.endswith(f".{key}")), "")
            hint = (nearest(key, siblings) or inner or nearest(key, known)).removesuffix("?")
            have = ""
            if place and isinstance(node, DictConfig):
                have = f"; {place} has: {', '.join(sorted(k for k in map(str, node) if not k.startswith('_')))}"
            raise InputError(f"no option '{key}'{hint}{have}{'' if have else '; see --help'}")
        node = node._get_node(part)
        if isinstance(node, (DictConfig, ListConfig)) and (node._is_none() or node._is_missing()):
            return


def _keys(node: DictConfig, prefix: str = "") -> Iterator[str]:
    """Dotted names of all options, groups of them included."""
    for key in node:
        name = f"{prefix}{key!s}"
        yield name
        child = node._get_node(key)
        if isinstance(child, DictConfig) and not child._is_none() and not child._is_missing():
            yield from _keys(child, f"{name}.")


def _values(override: Override) -> list[str]:
    """The options that a choice names: one, several in a sweep, or a list of them; none for null."""
    if override.is_sweep_override():
        return [str(v) for v in override.sweep_string_iterator()]
    value = override.value()
    if value is None:
        return []
    return [str(v) for v in value] if isinstance(value, list) else [str(value)]


def _options(loader: ConfigLoader, group: str) -> list[str]:
    return sorted(loader.get_group_options(group, ObjectType.CONFIG))


def _unknown(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    return f"unknown{nearest(name, names) or ';'} known: {', '.join(names)}"


def _line(error: BaseException) -> str:
    return " ".join(str(error).split(" full_key:")[0].split("\n    full_key:")[0].split())
