"""Processes of ``fednnnn``, forked from one that has imported everything."""

import json
import runpy
from multiprocessing import forkserver, get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from .processes import WATCHDOG, Ended, kill_with_children

COMMAND = str(Path(__file__).with_name("command_process.py"))
PRELOADED = [
    *("fednnnn_plugin.cli", "fednnnn_plugin.assembly.run", "fednnnn_plugin.followers.progress"),
    *("fednnnn_plugin.reporting.build", "sklearn.metrics", "torch._dynamo", "optuna", "pytest"),
]
RECIPE = "digits_noniid_b_fednnnn"
#: Of a quick run on a CPU: a round of some 15 ms with 3 of 20 clients, and a checkpoint.
QUICK: dict[str, Any] = {"client_num_per_round": 3, "epochs": 1, "comm_round": 1}
QUICK |= {"checkpoint_every": 1, "using_gpu": False}


def quick(**keys: Any) -> list[str]:
    """Return the options of a quick run; keywords are a recipe's other keys."""
    return [f"--set={key}={json.dumps(value)}" for key, value in (QUICK | keys).items()]


def quick_words(output: object, *more: str, recipe: str = RECIPE, **keys: Any) -> list[str]:
    """Return the arguments of a quick run in a folder."""
    return ["run", recipe, f"--output={output}", *quick(**keys), *more]


class Commands:
    """Starts ``fednnnn`` commands, each in a process of its own; see `command_process`."""

    def __init__(self, screens: Path) -> None:
        self._screens = screens
        self._started: list[ForkServerProcess] = []
        forkserver.set_forkserver_preload(PRELOADED)
        forkserver.ensure_running()

    def start(self, *arguments: str | Path, folder: Path, **limits: Any) -> ForkServerProcess:
        """Start a command in a folder, with the limits and faults of `command_process`."""
        screen = str(self._screens / str(len(self._started)))
        asked = {"arguments": list(map(str, arguments)), "folder": folder, "screen": screen}
        asked |= {"memory": 0, "processor": 0, "watch": "", "copied": "", "full": ()}
        asked |= {"watchdog": WATCHDOG} | limits
        process = get_context("forkserver").Process(
            target=runpy.run_path, args=(COMMAND, {"ASKED": asked}), name=screen
        )
        process.start()
        self._started.append(process)
        return process

    def wait(self, process: ForkServerProcess) -> Ended:
        """Wait for the end of a command."""
        process.join()
        screens = [Path(f"{process.name}.{part}").read_text() for part in ("out", "err")]
        return Ended(process.exitcode, *screens)

    def run(self, *arguments: str | Path, **options: Any) -> Ended:
        """Start a command and wait for its end."""
        return self.wait(self.start(*arguments, **options))

    def kill_all(self) -> None:
        """Kill what a test that failed has left, or pytest would wait for it at its end."""
        for process in self._started:
            if process.is_alive() and process.pid:
                kill_with_children(process.pid)
