"""Followers that log to TensorBoard and to Weights & Biases."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from fednnnn_plugin.errors import UserError, how_to_install
from fednnnn_plugin.followers.follower import Follower
from fednnnn_plugin.quantities import RoundRecord

_KEY = "tracking_args.enable_wandb"
# wandb starts a process by ``python -m``, which Python 3.10 always lets import from the working
# directory: there wandb uses a thread.
_OF_PROCESSES = (
    {"PYTHONSAFEPATH": "1"}
    if sys.version_info >= (3, 11)
    else {"WANDB_DISABLE_SERVICE": "true", "WANDB_START_METHOD": "thread"}
)


@contextmanager
def _importing_nothing_from_here() -> Iterator[None]:
    """Keep the processes that are started from importing from the working directory."""
    before = {name: os.environ.get(name) for name in _OF_PROCESSES}
    os.environ.update(_OF_PROCESSES)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            os.environ.update({} if value is None else {name: value})


def _imported(module: str, has: str, where: str, extra: str) -> Any:
    """Import a tracker's package, which an ``extra`` of ours installs."""
    package: Any = None
    with suppress(ImportError):
        package = import_module(module)
    if not hasattr(package, has):  # as a mere folder of its name has not, such as wandb's of runs
        raise UserError(where, f"{module} is not installed", how_to_install(extra))
    return package


class TensorBoard(Follower):
    """Writes event files for TensorBoard into ``tensorboard/`` of the run folder."""

    def __init__(self) -> None:
        needed = "tensorboardX", "SummaryWriter", "--tensorboard", "tensorboard"
        self._open = _imported(*needed).SummaryWriter

    def begin(self, folder: Path, finished: int) -> None:
        """Open an event file."""
        self._writer = self._open(str(folder / "tensorboard"), purge_step=finished + 1)

    def round_done(self, record: RoundRecord) -> None:
        """Write a round's numbers."""
        for name, value in record.tagged().items():
            self._writer.add_scalar(name, value, record.round)
        self._writer.flush()

    def end(self) -> None:
        """Close the file."""
        self._writer.close()


class WeightsAndBiases(Follower):
    """Logs to Weights & Biases: to the run that ``fedml.init`` has begun, or one of its own.

    ``options`` are those of ``wandb.init``. ``WANDB_MODE=offline`` keeps it off the network, as
    ever; where it would ask for an API key it is refused.
    """

    def __init__(self, **options: object) -> None:
        with _importing_nothing_from_here():
            wandb = self._wandb = _imported("wandb", "setup", f"{_KEY}: true", "wandb")
            # The variable first: wandb reads it once a process, perhaps before it was set.
            mode = os.environ.get("WANDB_MODE") or wandb.setup().settings.mode
        is_online = mode not in ("offline", "dryrun", "disabled")
        if wandb.run is None and wandb.api.api_key is None and is_online:
            raise UserError(
                _KEY,
                "true: Weights & Biases has no API key: run `wandb login`, set WANDB_API_KEY, or "
                "set WANDB_MODE=offline",
            )
        self._options = {**options, "mode": mode}

    def begin(self, folder: Path, finished: int) -> None:
        """Begin a run where there is none, by the folder's name if it has none."""
        options = {**self._options, "name": self._options.get("name") or folder.name}
        self._own = self._wandb.run is None
        try:
            with _importing_nothing_from_here():
                self._run = self._wandb.run or self._wandb.init(dir=str(folder), **options)
        except self._wandb.Error as error:
            raise UserError(_KEY, f"true: {error}") from error

    def round_done(self, record: RoundRecord) -> None:
        """Log a round's numbers."""
        self._run.log({**record.tagged(), "round": record.round})

    def end(self) -> None:
        """Finish the run, if it is our own."""
        if self._own:
            self._run.finish()
