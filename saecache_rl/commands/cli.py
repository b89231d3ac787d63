"""The one entry of all commands: Hydra in front, exit codes behind.

Exit codes: 0 done, 1 a failure of ours (with its traceback), 2 a mistake in the command or its input (one line on
standard error), 130 interrupted with everything so far kept. Ctrl-C and SIGTERM are the same thing.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from saecache_rl.commands import overrides, settings
from saecache_rl.commands.settings import Settings
from saecache_rl.errors import InputError

DONE, FAILED, MISTAKE, INTERRUPTED = 0, 1, 2, 130
CONFIG_MODULE = "saecache_rl.conf"

Run = Callable[[Settings, Path], float | None]


class PartialFailureError(Exception):
    """Some of a command's jobs failed and the others' results are kept; the message is for the user. Exit code 1."""


class _Ended(BaseException):
    """Carries an exception out of a command past Hydra, which would print it in its own way."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def command(name: str, kind: type[Settings]) -> Callable[[Run[Settings]], Callable[[], NoReturn]]:
    """Make a command of a function of its options and its run's folder.

    The function may return a number for Hydra's sweepers to optimise. With ``resume=FOLDER`` alone on the command line
    it gets the options that are stored there, with `resume` set, and the same folder.

    Args:
        name: of the command; its configuration is ``conf/<name>.yaml``.
        kind: the class of its options.
    """

    def decorate(run: Run[Settings]) -> Callable[[], NoReturn]:
        def main() -> NoReturn:
            sys.exit(execute(name, kind, run, sys.argv[1:]))

        return main

    return decorate


def execute(name: str, kind: type[Settings], run: Run[Settings], arguments: list[str]) -> int:
    """Run a command and return its exit code."""
    settings.register()
    # Hydra prints errors in its own way and exits with 1 unless it is asked to let them through.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    folders: list[Path] = []
    with _terminate_like_interrupt():
        try:
            if any(argument.startswith("resume=") for argument in arguments):
                _resume(kind, run, arguments, folders)
            else:
                _start(name, kind, run, arguments, folders)
        except _Ended as ended:
            return _report(name, ended.error, folders)
        except (HydraException, OmegaConfBaseException, ValueError, OSError) as error:
            # Nothing of ours has run yet: Hydra refused the command line or could not make the run's folder.
            problem = error if isinstance(error, InputError) else overrides.explain(error, name, _values(arguments))
            return _report(name, problem, folders)
        except KeyboardInterrupt as interrupt:
            return _report(name, interrupt, folders)
    return DONE


def _start(name: str, kind: type[Settings], run: Run[Settings], arguments: list[str], folders: list[Path]) -> None:
    _check_flags(arguments)

    def task(config: DictConfig) -> float | None:
        try:
            hydra_config = HydraConfig.get()
            folder = Path(hydra_config.runtime.output_dir).absolute()
            given = list(hydra_config.overrides.task)
            overrides.check(given, name)
            options = OmegaConf.to_object(config)
            assert isinstance(options, kind)
            _settle(options, given)
            settings.check(options)
            folders[:] = [folder]
            return run(options, folder)
        except (HydraException, OmegaConfBaseException) as error:
            raise _Ended(overrides.explain(error, name, _values(arguments))) from None
        except (Exception, KeyboardInterrupt) as error:
            raise _Ended(error) from None

    before = sys.argv
    sys.argv = [f"saecache_rl.{name}", *arguments]
    try:
        hydra.main(version_base="1.3", config_path=f"pkg://{CONFIG_MODULE}", config_name=name)(task)()
    except SystemExit as end:  # --help and --version end so
        if end.code not in (None, 0):
            raise
    finally:
        sys.argv = before


def _resume(kind: type[Settings], run: Run[Settings], arguments: list[str], folders: list[Path]) -> None:
    if len(arguments) > 1:
        other = next(a for a in arguments if not a.startswith("resume="))
        raise InputError(f"resume= takes every option from the run's folder; leave out {other}")
    folder = Path(arguments[0].removeprefix("resume=")).absolute()
    options = settings.read(kind, folder)
    options.resume = str(folder)
    settings.check(options)
    folders[:] = [folder]
    try:
        run(options, folder)
    except (Exception, KeyboardInterrupt) as error:
        raise _Ended(error) from None


def _settle(options: settings.WorkloadSettings, given: list[str]) -> None:
    """Make the options mean the same from any folder, and say who seeds the workload."""
    if any(o.lstrip("+").startswith("workload.seed=") for o in given):
        options.reseed_workload = False
    path = options.workload.get("path")
    if isinstance(path, str) and path:
        options.workload["path"] = str(Path(path).expanduser().absolute())


def _check_flags(arguments: list[str]) -> None:
    """Let Hydra's own parser read the flags, and make one line of its complaint.

    Raises:
        InputError: an unknown flag, or one without its value.
    """
    complaint = io.StringIO()
    if "--version" in arguments:
        return
    try:
        with contextlib.redirect_stderr(complaint):
            get_args_parser().parse_args(arguments)
    except SystemExit:
        problem = complaint.getvalue().strip().splitlines()[-1].split("error: ", 1)[-1]
        raise InputError(f"{problem}; options are written name=value, see --help") from None


def _values(arguments: list[str]) -> list[str]:
    """The overrides among the arguments."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            return list(get_args_parser().parse_args(arguments).overrides)
    except SystemExit:
        return []


def _report(name: str, error: BaseException, folders: list[Path]) -> int:
    sys.stdout.flush()
    if isinstance(error, InputError):
        print(f"{name}: {' '.join(str(error).split())}", file=sys.stderr)
        return MISTAKE
    if isinstance(error, KeyboardInterrupt):
        kept = [f for f in folders if (f / settings.CONFIG_FILE).exists()]
        remedy = f"continue with: python -m saecache_rl.{name} resume={kept[0]}" if kept else "nothing had begun yet"
        print(f"{name}: interrupted; {remedy}", file=sys.stderr)
        return INTERRUPTED
    if isinstance(error, PartialFailureError):
        print(f"{name}: {error}", file=sys.stderr)
        return FAILED
    traceback.print_exception(error)
    kept = [f for f in folders if (f / settings.CONFIG_FILE).exists()]
    if kept:
        print(f"{name}: failed; what was done so far is kept in {kept[0]}", file=sys.stderr)
    return FAILED


@contextlib.contextmanager
def _terminate_like_interrupt() -> Iterator[None]:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        before: Any = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not in the main thread: signals are someone else's
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
