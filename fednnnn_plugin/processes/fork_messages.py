"""What a fork says: the result of a call, a log record, a warning; in messages that are pickled."""

import logging
import pickle
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from fednnnn_plugin.errors import UserError, logged_message
from fednnnn_plugin.processes.workers import Failure


class Slot(Protocol):
    """A model: tensors that a call may return in memory which it shares with this process."""

    @property
    def tensors(self) -> list[Tensor]:
        """All of them, in a fixed order."""

    def map(self, function: Callable[[Tensor], Tensor]) -> "Slot":
        """Return what a function gives of each."""


@dataclass
class Result:
    """What a call gave; a model is in the slot. Or what it raised."""

    given: Any = None
    in_slot: bool = False
    raised: tuple[Exception, bytes | None, str] | None = None
    is_last: bool = False  # its process has died

    @classmethod
    def of(cls, given: Any, slot: Slot) -> "Result":
        """Return what a call gave; a model is put into the slot."""
        if not isinstance(given, type(slot)):
            return cls(given)
        for mine, theirs in zip(slot.tensors, given.tensors, strict=True):
            mine.copy_(theirs)
        return cls(in_slot=True)

    @classmethod
    def of_error(cls, error: BaseException) -> "Result":
        """Return what a call raised: its line, the cause, its traceback."""
        text = "".join(traceback.format_exception(error))
        cause = error.__cause__ if isinstance(error, UserError) else error
        return cls(raised=(Failure.of(error), _sent(cause) if cause else None, text))

    def value(self, slot: Slot) -> Any:
        """Return the result, or the error, with its traceback's text as the last cause."""
        if self.raised is None:
            return slot if self.in_slot else self.given
        failure, sent, text = self.raised
        if text and (sent or not isinstance(failure, UserError)):
            failure.__cause__ = RuntimeError(str(failure))
            with suppress(Exception):  # a module that this process cannot import
                failure.__cause__ = pickle.loads(sent) if sent else failure.__cause__
            failure.__cause__.__cause__ = _Traceback(text)
        return failure


class _Traceback(Exception):
    """The text of a fork's traceback."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


#: A warning: the arguments of ``warnings.showwarning``.
ForkWarning = tuple[str, type[Warning], str, int]


def report_to(say: Callable[[object], None]) -> None:
    """Have this process's log records and warnings said, not handled."""

    def show(
        message: object, category: type[Warning], filename: str, lineno: int, *_: Any, **__: Any
    ) -> None:
        category = category if _sent(category) else UserWarning
        say((str(message), category, filename, lineno))

    warnings.showwarning = show
    saying, root = _Saying(say), logging.getLogger()
    for logger in (root, *root.manager.loggerDict.values()):
        if logger is root or (isinstance(logger, logging.Logger) and logger.handlers):
            logger.handlers = [saying]


class _Saying(logging.Handler):
    """In the place of all handlers, through several of which a record may come."""

    def __init__(self, say: Callable[[object], None]) -> None:
        super().__init__()
        self._say = say
        self._said: logging.LogRecord | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if record is self._said:
            return
        self._said = record
        plain = {key: x for key, x in vars(record).items() if isinstance(x, str | int | float)}
        fields = plain | {"msg": logged_message(record)}
        if record.exc_info and record.exc_info[0]:
            fields["exc_text"] = "".join(traceback.format_exception(*record.exc_info)).rstrip()
        self._say(fields)


def _sent(thing: object) -> bytes | None:
    """Return what another process understands, or None where it would not."""
    try:
        content = pickle.dumps(thing)
        pickle.loads(content)
    except Exception:
        return None
    return content
