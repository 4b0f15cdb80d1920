"""Who follows a run while it lasts: a person's screen, TensorBoard, Weights & Biases."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from fednnnn_plugin.engine.endings import say
from fednnnn_plugin.engine.records import RoundRecord
from fednnnn_plugin.errors import UserError, escaped

_UNSEEN = suppress(OSError)  # a screen that is gone or full costs no run
_NORMS = ("mean_update_norm", "mean_client_norm", "server_update_norm")


class Follower:
    """Base class of objects that are notified of a run's progress, on rank 0.

    A subclass overrides the methods that it needs. All are called in the thread that runs the
    federation. An exception in one of them ends the run, whose last finished round is saved.
    """

    def begin(self, folder: Path, finished: int) -> None:
        """Called before the first round; ``finished`` rounds are already in the folder."""

    def client_done(self, round_number: int, done: int, of: int) -> None:
        """Called when ``done`` of this process's ``of`` clients of a round have trained."""

    def round_done(self, record: RoundRecord) -> None:
        """Called when a round has ended."""

    def end(self) -> None:
        """Called at the end, also of a run that failed: close what :meth:`begin` has opened."""


def scalars(record: RoundRecord) -> dict[str, float]:
    """Return a round's numbers by name: FedML's ``Test/Acc`` and ``Test/Loss``, and the norms."""
    named = {
        "Test/Acc": record.test_acc,
        "Test/Loss": record.test_loss,
        "Test/ServedAcc": record.served_test_acc,
        **{f"Test/{name}": value for name, value in (record.test_metrics or {}).items()},
        "NWDA/integrated_norm": record.integrated_norm,
        "NWDA/rejected": record.rejected,
        **{f"NWDA/{name}": getattr(record, name) for name in _NORMS},
        **{
            f"NWDA/{module}/{name}": getattr(norms, name)
            for module, norms in record.layers.items()
            for name in _NORMS
        },
    }
    return {name: float(value) for name, value in named.items() if value is not None}


@contextmanager
def progress_display(rounds: int) -> Iterator[Follower]:
    """Show the package's warnings, and a bar; a line a round where no bar can move."""
    with warnings_shown():
        is_moving = _in_notebook() or (sys.stderr is not None and sys.stderr.isatty())
        yield _Bar(rounds) if is_moving else _Lines(rounds)


def _in_notebook() -> bool:
    """Tell whether a kernel runs this process; to have imported one is not enough."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


@contextmanager
def warnings_shown() -> Iterator[None]:
    """Show each of the package's warnings once, on a line."""
    logger, handler = logging.getLogger("fednnnn_plugin"), _ScreenHandler(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _ScreenHandler(logging.Handler):
    """Writes one line a record above a progress bar; tracebacks are for the log file."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self._shown: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        line = f"{record.levelname.lower()}: {record.getMessage()}"
        if sys.stderr is not None and line not in self._shown:  # it may be closed
            self._shown.add(line)
            with _UNSEEN:
                tqdm.write(escaped(line, kept="\t"), file=sys.stderr)


class _Bar(Follower):
    """Moves with every client, on a terminal and in a notebook."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds

    def begin(self, folder: Path, finished: int) -> None:
        self._bar = tqdm(
            total=self._rounds,
            initial=finished,
            desc=f"round {finished + 1}/{self._rounds}",
            bar_format="{desc} |{bar}| {percentage:3.0f}%{postfix} [{elapsed}<{remaining}]",
            dynamic_ncols=True,
            smoothing=0,  # the time left is that of the mean round so far
            miniters=0,
        )

    def client_done(self, round_number: int, done: int, of: int) -> None:
        text = f"round {round_number}/{self._rounds}, client {done}/{of}"
        self._bar.set_description_str(text, refresh=False)
        with _UNSEEN:
            self._bar.update(round_number - 1 + done / of - self._bar.n)

    def round_done(self, record: RoundRecord) -> None:
        self._bar.set_postfix_str(f"round {record.round}: {figures(record)}", refresh=False)
        with _UNSEEN:
            self._bar.update(record.round - self._bar.n)
            self._bar.refresh()

    def end(self) -> None:
        with _UNSEEN:
            self._bar.close()


class _Lines(Follower):
    def __init__(self, rounds: int) -> None:
        self._rounds = rounds

    def round_done(self, record: RoundRecord) -> None:
        seconds = sum((record.seconds.train, record.seconds.aggregate, record.seconds.evaluate))
        left = tqdm.format_interval(round(seconds * (self._rounds - record.round))).removeprefix(
            "0"
        )
        say(f"round {record.round}/{self._rounds}  {figures(record)}  {seconds:.2f} s  {left} left")


def figures(record: RoundRecord) -> str:
    """Return what a person looks at first in a round."""
    tested = [f"{name} {value:.4g}" for name, value in (record.test_metrics or {}).items()]
    if record.test_acc is not None:
        tested.append(f"accuracy {record.test_acc:.4f}")
    ratio = record.mean_update_norm / record.mean_client_norm if record.mean_client_norm else 0.0
    dropped = f"  {record.rejected} rejected" if record.rejected else ""
    return f"{'  '.join(tested) or 'not tested'}  N/E {ratio:.3f}{dropped}"


class TensorBoard(Follower):
    """Writes event files for TensorBoard into ``tensorboard/`` of the run folder."""

    def __init__(self) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise UserError(
                "--tensorboard: tensorboardX is not installed: install fednnnn-plugin[tensorboard]"
            ) from None
        self._open = SummaryWriter

    def begin(self, folder: Path, finished: int) -> None:
        """Open an event file."""
        self._writer = self._open(str(folder / "tensorboard"), purge_step=finished + 1)

    def round_done(self, record: RoundRecord) -> None:
        """Write a round's numbers."""
        for name, value in scalars(record).items():
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
        try:
            import wandb
        except ImportError:
            raise UserError(
                "tracking_args.enable_wandb: true: wandb is not installed: install "
                "fednnnn-plugin[wandb]"
            ) from None
        self._wandb: Any = wandb
        # The variable first: wandb reads it once a process, perhaps before it was set.
        mode = os.environ.get("WANDB_MODE") or self._wandb.setup().settings.mode
        is_online = mode not in ("offline", "dryrun", "disabled")
        if wandb.run is None and wandb.api.api_key is None and is_online:
            raise UserError(
                "tracking_args.enable_wandb: true: Weights & Biases has no API key: run `wandb "
                "login`, set WANDB_API_KEY, or set WANDB_MODE=offline"
            )
        self._options = {**options, "mode": mode}

    def begin(self, folder: Path, finished: int) -> None:
        """Begin a run where there is none, by the folder's name if it has none."""
        options = {**self._options, "name": self._options.get("name") or folder.name}
        self._own = self._wandb.run is None
        try:
            self._run = self._wandb.run or self._wandb.init(dir=str(folder), **options)
        except self._wandb.Error as error:
            raise UserError(f"tracking_args.enable_wandb: true: {error}") from error

    def round_done(self, record: RoundRecord) -> None:
        """Log a round's numbers."""
        self._run.log({**scalars(record), "round": record.round})

    def end(self) -> None:
        """Finish the run, if it is our own."""
        if self._own:
            self._run.finish()
