"""``metrics.jsonl``: one object a round."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from fednnnn_plugin.engine.files import errors_named
from fednnnn_plugin.server.accumulator import Update
from fednnnn_plugin.server.server import ServerMove

_LONGEST = 1 << 24  # bytes of a line


@dataclass(frozen=True)
class Seconds:
    """Wall time of the parts of a round."""

    train: float
    aggregate: float
    evaluate: float


@dataclass(frozen=True)
class LayerRecord:
    """The norms of one module."""

    mean_update_norm: float
    mean_client_norm: float
    server_update_norm: float


@dataclass(frozen=True)
class RoundRecord:
    """What is kept of a round; norms are Euclidean.

    Attributes:
        round: from 1.
        test_acc: accuracy of the evaluation model in [0, 1]; None where it was not tested.
        test_loss: its mean cross-entropy in nats; None where not tested or not finite.
        served_test_acc: accuracy of the served model, where asked for.
        mean_update_norm: N.
        mean_client_norm: E.
        server_update_norm: ``‖w_{t+1} - w_t‖``.
        integrated_norm: its sum over all rounds so far.
        client_norms: minimum, median and maximum of ``‖Δ_k‖``.
        layers: the same norms by module.
        clients: how many client models the round averages.
        rejected: how many it dropped.
        degenerate: N was near 0, the served model stayed.
        seconds: wall time.
    """

    round: int
    test_acc: float | None
    test_loss: float | None
    served_test_acc: float | None
    mean_update_norm: float
    mean_client_norm: float
    server_update_norm: float
    integrated_norm: float
    client_norms: tuple[float, float, float]
    layers: dict[str, LayerRecord]
    clients: int
    rejected: int
    degenerate: bool
    seconds: Seconds

    def to_json(self) -> str:
        """Return the record as one line."""
        return json.dumps(asdict(self), allow_nan=False)


def layer_records(update: Update, move: ServerMove) -> dict[str, LayerRecord]:
    """Join a round's norms by module."""
    return {
        module: LayerRecord(norms.mean_update_norm, norms.mean_client_norm, move.layers[module])
        for module, norms in update.layers.items()
    }


class MetricsFile:
    """Appends records."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, record: RoundRecord) -> None:
        """Add one round's line."""
        with errors_named(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(record.to_json() + "\n")

    def sync(self) -> None:
        """Have the disk hold what was written: a checkpoint's rounds are then on record."""
        with errors_named(self.path), self.path.open("ab") as file:
            os.fsync(file.fileno())

    def rounds(self) -> int:
        """Return how many rounds are on record: whole lines from the first one on."""
        number = 0
        for number, line in enumerate(self._lines(), start=1):
            if not _is_record(line, number):
                return number - 1
        return number

    def cut(self, last_round: int) -> None:
        """Drop what was written after ``last_round``, whole lines or parts of one."""
        kept = sum(map(len, islice(self._lines(), last_round)))
        with errors_named(self.path), self.path.open("ab") as file:
            file.truncate(kept)

    def tested(self) -> list[tuple[int, float]]:
        """Return (round, accuracy) of every tested round."""
        records = map(json.loads, self._lines())
        return [(r["round"], r["test_acc"]) for r in records if r["test_acc"] is not None]

    def _lines(self) -> Iterator[bytes]:
        """Yield the lines one at a time; one that is too long to be a record comes in pieces."""
        if self.path.exists():
            with self.path.open("rb") as file:
                yield from iter(partial(file.readline, _LONGEST), b"")


def _is_record(line: bytes, number: int) -> bool:
    """Tell whether a line holds what the engine reads of a round's record."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return False
    if not line.endswith(b"\n") or not isinstance(fields, dict) or "test_acc" not in fields:
        return False
    accuracy = fields["test_acc"]
    tested = isinstance(accuracy, int | float) and 0 <= accuracy <= 1
    return (
        type(fields.get("round")) is int
        and fields["round"] == number
        and (tested or accuracy is None)
    )
