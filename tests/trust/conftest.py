"""Real processes of ``fednnnn`` to disturb."""

import json
import os
import runpy
from collections.abc import Callable
from multiprocessing import forkserver, get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

from ..support.processes import Ended

COMMAND = str(Path(__file__).with_name("command.py"))
PRELOADED = [
    *("fednnnn_plugin.cli", "fednnnn_plugin.engine.start", "fednnnn_plugin.engine.display"),
    *("fednnnn_plugin.report.build", "sklearn.datasets", "torch._dynamo", "pytest"),
]
#: Rounds of some 15 ms: 3 of 20 clients, one epoch, a checkpoint in each.
QUICK = {
    **{"train_args.client_num_per_round": 3, "train_args.epochs": 1, "train_args.comm_round": 3},
    **{"train_args.checkpoint_every": 1, "device_args.using_gpu": False},
}


class Commands:
    """Starts ``fednnnn`` commands, each in a process of its own; see `command`."""

    def __init__(self, screens: Path) -> None:
        self._screens, self._count = screens, 0

    def start(self, *arguments: str | Path, folder: Path, **limits: Any) -> ForkServerProcess:
        """Start a command in a folder, with the limits and faults of `command`."""
        self._count += 1
        screen = str(self._screens / str(self._count))
        asked = {"arguments": list(map(str, arguments)), "folder": folder, "screen": screen}
        asked |= {"memory": 0, "processor": 0, "watch": "", "strike": ()} | limits
        process = get_context("forkserver").Process(
            target=runpy.run_path, args=(COMMAND, {"ASKED": asked}), name=screen
        )
        process.start()
        return process

    def wait(self, process: ForkServerProcess) -> Ended:
        """Wait for the end of a command."""
        process.join()
        screens = [Path(f"{process.name}.{part}").read_text() for part in ("out", "err")]
        return Ended(process.exitcode, *screens)

    def run(self, *arguments: str | Path, **options: Any) -> Ended:
        """Start a command and wait for its end."""
        return self.wait(self.start(*arguments, **options))


@pytest.fixture(scope="session")
def commands(tmp_path_factory: pytest.TempPathFactory, unmeasured: dict[str, str]) -> Commands:
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ.keys() - unmeasured.keys():
            patch.delenv(name)
        patch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # it would count as a change of a file
        forkserver.set_forkserver_preload(PRELOADED)
        forkserver.ensure_running()
    return Commands(tmp_path_factory.mktemp("screens"))


@pytest.fixture(scope="session")
def quick() -> Callable[..., list[str]]:
    """The arguments of a quick run; keywords are its ``train_args``."""

    def arguments(output: object, *more: str, **keys: Any) -> list[str]:
        settings = QUICK | {k if "." in k else f"train_args.{k}": v for k, v in keys.items()}
        sets = [f"--set={key}={json.dumps(value)}" for key, value in settings.items()]
        return ["run", "digits_noniid_b_fednnnn", "--output", str(output), *sets, *more]

    return arguments
