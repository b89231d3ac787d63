"""The options of the commands, typed; Hydra checks the configuration against these classes.

`workload` has its place here and no entry in the defaults list of `conf/*.yaml`: that is what lets `+workload=NAME`
choose it, and `workload.option=value` change an option that the workload's YAML lists.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from saecache_rl.errors import InputError, nearest
from saecache_rl.tracking.weights_and_biases import WandbSettings

CLOCKS = ("instant",)
SESSIONS = ("lineage", "hint")
FEATURES = ("request", "hidden")
REWARDS = ("token_hit_ratio", "ttft")
WANDB_MODES = ("auto", "online", "offline", "disabled")


@dataclass
class WorkloadSettings:
    """What every command on a workload takes.

    Attributes:
        workload: a node of conf/workload; instantiating it gives a trace.
        reseed_workload: a seed draws the workload anew, where it is drawn; false where `workload.seed=` is given.
        plots: draw the figures.
        resume: the folder of an interrupted run.
    """

    workload: dict[str, Any] = field(default_factory=dict)
    reseed_workload: bool = True
    plots: bool = True
    resume: str | None = None


@dataclass
class RunSettings(WorkloadSettings):
    """What every command that runs agents on a workload takes.

    Attributes:
        engine: a node of conf/engine.
        predictor: a node of conf/predictor: will this session continue?
        num_blocks: capacity in blocks; which forms hold is up to the command.
        window: requests between two steps of the agent.
        reward: what the agent is told of a window: token_hit_ratio or ttft.
        wandb: Weights & Biases.
    """

    engine: dict[str, Any] = field(default_factory=dict)
    predictor: dict[str, Any] = field(default_factory=dict)
    num_blocks: Any = "auto"
    window: int = 100
    reward: str = "token_hit_ratio"
    wandb: WandbSettings = field(default_factory=WandbSettings)


@dataclass
class TrainSettings(RunSettings):
    """Options of `train`.

    Attributes:
        agent: a node of conf/agent.
        seed: of the agent, and of the workload where it is drawn.
        checkpoint_every: windows between two checkpoints.
    """

    agent: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    checkpoint_every: int = 20


@dataclass
class CompareSettings(RunSettings):
    """Options of `compare`.

    Attributes:
        agents: names of conf/agent, or variants of them (see `saecache_rl.compare`); once composed, mappings.
        seeds: each of the agent, and of the workload where it is drawn.
        workers: processes; null for one a core.
    """

    agents: list[Any] = field(default_factory=list)
    seeds: list[int] = field(default_factory=lambda: [0])
    workers: int | None = None


@dataclass
class CharacterizeSettings(WorkloadSettings):
    """Options of `characterize`.

    Attributes:
        sessions: how sessions are known: hint (the trace's own ids), lineage, or auto (hint where the trace has ids).
    """

    sessions: str = "auto"


@dataclass
class TrainPredictorSettings(WorkloadSettings):
    """Options of `train_predictor`.

    Attributes:
        sessions: as in `CharacterizeSettings`.
        seed: of the split by session and of the network's start.
        horizon_seconds: how long a session may be silent until it counts as over.
        test_share: part of the sessions, or of the time, that is held out.
        text_buckets: hashed features of the prompt's latest text; 0 for none.
        epochs, step, penalty: passes over the data, step and L2 penalty of the training.
        features: request (figures and words of a request) or hidden (a model's hidden states of prompts as well).
        model: the folder of that model.
        network_step: AdamW's step, of the network on hidden states.
    """

    sessions: str = "auto"
    seed: int = 0
    horizon_seconds: float = 600.0
    test_share: float = 0.3
    text_buckets: int = 1024
    epochs: int = 30
    step: float = 0.05
    penalty: float = 1e-4
    features: str = "request"
    model: str | None = None
    network_step: float = 1e-3


Settings = TypeVar("Settings", bound=WorkloadSettings)

CONFIG_FILE = "config.yaml"


def register() -> None:
    """Tell Hydra's ConfigStore of the option classes; `conf/<command>.yaml` names them first in its defaults."""
    store = ConfigStore.instance()
    store.store(name="train_settings", node=TrainSettings, provider="saecache_rl")
    store.store(name="compare_settings", node=CompareSettings, provider="saecache_rl")
    store.store(name="characterize_settings", node=CharacterizeSettings, provider="saecache_rl")
    store.store(name="train_predictor_settings", node=TrainPredictorSettings, provider="saecache_rl")


def check(settings: WorkloadSettings) -> None:
    """Refuse values that no run can have.

    Raises:
        InputError: the first one found, with what it may be.
    """
    if isinstance(settings, CharacterizeSettings | TrainPredictorSettings):
        choice("sessions", settings.sessions, ("auto", *SESSIONS))
    if isinstance(settings, TrainPredictorSettings):
        _check_training(settings)
    if not isinstance(settings, RunSettings):
        return
    for name in ("engine", "predictor"):
        if not getattr(settings, name):
            raise InputError(f"no {name} is chosen; leave out '~{name}'")
    if isinstance(settings, TrainSettings) and not settings.agent:
        raise InputError("no agent is chosen; leave out '~agent'")
    if settings.window < 1:
        raise InputError(f"window={settings.window}: a window has at least one request")
    choice("reward", settings.reward, REWARDS)
    choice("wandb.mode", settings.wandb.mode, WANDB_MODES)
    choice("engine.clock", settings.engine.get("clock", "instant"), CLOCKS)
    choice("engine.sessions", settings.engine.get("sessions", "lineage"), SESSIONS)
    seeds = settings.seeds if isinstance(settings, CompareSettings) else [getattr(settings, "seed", 0)]
    if not seeds:
        raise InputError("seeds=[]: give at least one")
    for seed in seeds:
        if not 0 <= seed < 2**32:
            raise InputError(f"seed {seed}: a seed is a whole number from 0 to 4294967295")
    if len(set(seeds)) != len(seeds):
        raise InputError(f"seeds={list(seeds)}: a seed is named twice")
    if isinstance(settings, TrainSettings) and settings.checkpoint_every < 1:
        raise InputError(
            f"checkpoint_every={settings.checkpoint_every}: at least one window lies between two checkpoints"
        )
    if isinstance(settings, CompareSettings) and settings.workers is not None and settings.workers < 1:
        raise InputError(f"workers={settings.workers}: give at least one, or null for one a core")


def _check_training(settings: TrainPredictorSettings) -> None:
    if not 0 < settings.test_share < 1:
        raise InputError(f"test_share={settings.test_share}: a part of the data, between 0 and 1")
    if settings.epochs < 1 or not 0 <= settings.text_buckets <= 2**20 or not 0 <= settings.seed < 2**32:
        raise InputError("epochs is at least 1, text_buckets from 0 to 1048576, seed from 0 to 4294967295")
    if not 0 < settings.horizon_seconds < float("inf"):
        raise InputError(f"horizon_seconds={settings.horizon_seconds}: a positive number of seconds")
    if not 0 < settings.step < float("inf") or not 0 <= settings.penalty < float("inf"):
        raise InputError("step is a positive number, penalty one that is not negative")
    choice("features", settings.features, FEATURES)
    if not 0 < settings.network_step < float("inf"):
        raise InputError(f"network_step={settings.network_step}: a positive number")
    if settings.model is not None and settings.features != "hidden":
        raise InputError(f"model={settings.model}: is used with features=hidden alone")


def choice(option: str, value: object, known: tuple[str, ...]) -> None:
    """Refuse a value that is not among the known ones.

    Raises:
        InputError: with the nearest, and all of them.
    """
    if value not in known:
        raise InputError(f"{option}={value}: unknown{nearest(str(value), known) or ';'} known: {', '.join(known)}")


def whole_number_of_blocks(value: object) -> int:
    """Read one capacity.

    Raises:
        InputError: it is no positive whole number.
    """
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or value != value
        or int(value) != value
        or value < 1
    ):
        raise InputError(f"num_blocks={value}: a capacity is a positive whole number of blocks")
    return int(value)


def refuse_used(folder: Path) -> None:
    """Refuse a folder that holds a run.

    Raises:
        InputError: it does.
    """
    if (folder / CONFIG_FILE).exists():
        raise InputError(
            f"{folder}: holds a run already; continue it with resume={folder}, or give another with hydra.run.dir="
        )


def write(settings: WorkloadSettings, folder: Path) -> None:
    """Write the options, complete and resolved, to the run's folder.

    Raises:
        InputError: the folder already holds a run.
    """
    refuse_used(folder)
    with (folder / CONFIG_FILE).open("x", encoding="utf-8") as file:
        file.write(OmegaConf.to_yaml(OmegaConf.structured(settings)))


def read(kind: type[Settings], folder: Path) -> Settings:
    """Read what `write` wrote.

    Raises:
        InputError: there is none, or it is no configuration of this command.
    """
    file = folder / CONFIG_FILE
    if not folder.is_dir():
        raise InputError(f"resume={folder}: no such folder; give the one that the interrupted run printed")
    try:
        loaded = OmegaConf.load(file)
        settings = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(kind), loaded))
    except FileNotFoundError:
        raise InputError(f"{folder}: no {CONFIG_FILE} there, so no run to resume; start it anew") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError, OmegaConfBaseException) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{file}: no configuration of this command ({reason}); start the run anew") from None
    assert isinstance(settings, kind)
    return settings
