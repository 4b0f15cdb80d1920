"""The progress of a run on a person's screen."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tqdm import auto
from tqdm.std import TqdmDefaultWriteLock

from fednnnn_plugin.errors import escaped, logged_message
from fednnnn_plugin.followers.follower import Follower, figures
from fednnnn_plugin.processes.endings import say
from fednnnn_plugin.quantities import RoundRecord

#: Of a log record that is shown on the screen as a line of its own.
SHOWN = {"is_shown": True}

_UNSEEN = suppress(OSError)  # a screen that is gone or full costs no run


class _Tqdm(auto.tqdm):  # type: ignore[misc]
    """Has only the threads' part of tqdm's lock: the other fixes how multiprocessing starts."""

    _lock = getattr(auto.tqdm, "_lock", TqdmDefaultWriteLock.th_lock)


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
    """Show each of the package's warnings once, on a line, and what is marked as `SHOWN`."""
    logger, handler = logging.getLogger("fednnnn_plugin"), _ScreenHandler()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _ScreenHandler(logging.Handler):
    """Writes one line a record above a progress bar; tracebacks are for the log file."""

    def __init__(self) -> None:
        super().__init__()
        self._shown: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING or hasattr(record, "is_shown")

    def emit(self, record: logging.LogRecord) -> None:
        kind = "" if hasattr(record, "is_shown") else f"{record.levelname.lower()}: "
        line = kind + logged_message(record)
        if sys.stderr is not None and line not in self._shown:  # it may be closed
            self._shown.add(line)
            with _UNSEEN:
                _Tqdm.write(escaped(line, kept="\t"), file=sys.stderr)


class _Bar(Follower):
    """Moves with every client, on a terminal and in a notebook."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds

    def begin(self, folder: Path, finished: int) -> None:
        self._bar = _Tqdm(
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
        seconds = record.seconds.total
        left = _Tqdm.format_interval(round(seconds * (self._rounds - record.round)))
        said = f"round {record.round}/{self._rounds}  {figures(record)}  {seconds:.2f} s"
        say(f"{said}  {left.removeprefix('0')} left")
