"""What a person sees of a run: a bar on a terminal, one line a round elsewhere."""

from __future__ import annotations

import logging
import sys
from types import TracebackType
from typing import Self

from tqdm import tqdm

from fednnnn_plugin.engine.records import RoundRecord


class ProgressDisplay:
    """Shows rounds as they end, and the package's warnings, one line each.

    Use it as a context manager around a run, and :meth:`show` as its ``on_round``.
    """

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._terminal = sys.stderr.isatty()
        self._bar: tqdm[RoundRecord] | None = None
        self._handler = _ScreenHandler(logging.WARNING)
        self._logger = logging.getLogger("fednnnn_plugin")

    def __enter__(self) -> Self:
        self._logger.addHandler(self._handler)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._logger.removeHandler(self._handler)
        if self._bar is not None:
            self._bar.close()

    def show(self, record: RoundRecord) -> None:
        """Show a round that has ended."""
        if self._terminal:
            self._advance_bar(record)
        else:
            sys.stdout.write(self._line(record) + "\n")
            sys.stdout.flush()

    def _advance_bar(self, record: RoundRecord) -> None:
        if self._bar is None:
            self._bar = tqdm(
                total=self._rounds, initial=record.round - 1, unit="round", dynamic_ncols=True
            )
        self._bar.set_postfix_str(_figures(record), refresh=False)
        self._bar.update()

    def _line(self, record: RoundRecord) -> str:
        seconds = sum((record.seconds.train, record.seconds.aggregate, record.seconds.evaluate))
        left = seconds * (self._rounds - record.round)
        return (
            f"round {record.round}/{self._rounds}  {_figures(record)}  {seconds:.2f} s"
            f"  {_duration(left)} left"
        )


class _ScreenHandler(logging.Handler):
    """Writes one line a record above a progress bar; tracebacks are for the log file."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(f"{record.levelname.lower()}: {record.getMessage()}", file=sys.stderr)


def _figures(record: RoundRecord) -> str:
    accuracy = "not tested" if record.test_acc is None else f"accuracy {record.test_acc:.4f}"
    ratio = record.mean_update_norm / record.mean_client_norm if record.mean_client_norm else 0.0
    dropped = f"  {record.rejected} rejected" if record.rejected else ""
    return f"{accuracy}  N/E {ratio:.3f}{dropped}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
