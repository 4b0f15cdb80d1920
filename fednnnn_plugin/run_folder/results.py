"""What a test found by client and by class: CSV files of a run folder, which grow by the round."""

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from fednnnn_plugin.errors import UserError, printable
from fednnnn_plugin.quantities import Spread
from fednnnn_plugin.run_folder.line_file import LineFile

CLIENTS, CLASSES = "clients.csv", "classes.csv"
_FORMULAS = ("=", "+", "-", "@")


class ClientResult(NamedTuple):
    """What a client's own test part gave; accuracy in [0, 1], the loss a mean over ``samples``."""

    client: int | str
    samples: int
    accuracy: float | None
    loss: float | None


class ClassResult(NamedTuple):
    """The accuracy on the test samples of one class, in [0, 1]; NaN before a test.

    Of the class all clients train on ``train_samples``, ``train_clients`` have one, and ``weight``
    is its share in each client's samples, averaged as the clients' models are over all clients;
    None where that is not known.
    """

    number: int
    name: str
    samples: int = 0
    accuracy: float = math.nan
    train_samples: int | None = None
    train_clients: int | None = None
    weight: float | None = None


#: Of the files, by their names.
COLUMNS = {
    CLIENTS: ("round", *ClientResult._fields),
    CLASSES: ("round", "class", *ClassResult._fields[1:]),
}


@dataclass(frozen=True)
class Results:
    """What a round's test found by client and by class; empty where it was not asked for."""

    clients: Sequence[ClientResult] = ()
    classes: Sequence[ClassResult] = ()

    @property
    def spreads(self) -> dict[str, Spread | None]:
        """What a record has of them."""
        return {
            "client_acc": spread([each.accuracy for each in self.clients]),
            "client_loss": spread([each.loss for each in self.clients], lower_is_better=True),
            "class_acc": spread([each.accuracy for each in self.classes]),
        }


NO_RESULTS = Results()


def spread(values: Sequence[float | None], *, lower_is_better: bool = False) -> Spread | None:
    """Return mean, deviation and worst of values; None where one is missing, or none is there."""
    known = sorted((v for v in values if v is not None), reverse=lower_is_better)
    if not known or len(known) < len(values):
        return None
    tenth = known[: math.ceil(len(known) / 10)]
    try:
        mean = math.fsum(known) / len(known)
        variance = math.fsum((v - mean) ** 2 for v in known) / len(known)
        return Spread(mean, math.sqrt(variance), math.fsum(tenth) / len(tenth), known[0])
    except OverflowError:
        return None


class ResultTables:
    """A run's ``clients.csv`` and ``classes.csv``, where there is something in them."""

    def __init__(self, folder: Path) -> None:
        self._tables = {n: LineFile(folder / n, _lines([of])) for n, of in COLUMNS.items()}

    def append(self, number: int, results: Results) -> None:
        """Add the lines of a round."""
        for name, found in ((CLIENTS, results.clients), (CLASSES, results.classes)):
            if lines := _lines((number, *result) for result in found):
                self._tables[name].write(lines)

    def sync(self) -> None:
        """See :meth:`LineFile.sync`."""
        for table in self._tables.values():
            table.sync()

    def check(self, where: object) -> None:
        """Refuse to continue what is not what this version has written; ``where`` asks to."""
        for table in self._tables.values():
            is_other = table.path.exists() and not table.path.is_file()
            first = next(table.lines(), b"")  # perhaps cut short
            if is_other or not table.header.startswith(first):
                must = f"its first line must be {table.header.decode().strip()}"
                raise UserError(where, table.path, f"{must}; or move it away")

    def cut(self, rounds: int) -> None:
        """Drop what was written after so many rounds, whole lines or parts of one."""
        for table in self._tables.values():
            lines = table.lines()
            if header := next(lines, b""):
                kept = takewhile(lambda line: _is_of(line, rounds), lines)
                table.shorten(sum(map(len, kept), len(header)) if header == table.header else 0)


def _lines(rows: Iterable[Sequence[object]]) -> bytes:
    """Return rows as lines; a name has no end of a line, and is no formula to a spreadsheet."""
    written = StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerows([_name(x) if isinstance(x, str) else x for x in row] for row in rows)
    return written.getvalue().encode()


def _name(text: str) -> str:
    return f"'{printable(text)}" if text.lstrip().startswith(_FORMULAS) else printable(text)


def _is_of(line: bytes, rounds: int) -> bool:
    """Tell whether a line is whole, and of one of the first rounds."""
    number = line.partition(b",")[0]
    return line.endswith(b"\n") and number.isdigit() and int(number) <= rounds
