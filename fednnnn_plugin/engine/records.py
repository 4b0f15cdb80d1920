"""What a run leaves on record: an object a round in ``metrics.jsonl``, and ``summary.json``."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Any

from fednnnn_plugin.engine.evaluation import Evaluation
from fednnnn_plugin.engine.folder import LONGEST_LINE, errors_named, open_regular, write_atomically
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.server.rules import Evaluated
from fednnnn_plugin.server.server import ServerMove
from fednnnn_plugin.server.update import Update

_LONGEST_SUMMARY = 1 << 20  # bytes


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


@dataclass(frozen=True, kw_only=True)
class RoundRecord:
    """What is kept of a round; norms are Euclidean.

    Attributes:
        round: from 1.
        evaluated: which model is the evaluation model; None where that is not known.
        test_acc: its accuracy in [0, 1]; None where it was not measured.
        test_loss: its mean cross-entropy in nats; None where not measured or not finite.
        test_metrics: what a user's own trainer measured of it, by name.
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
    evaluated: Evaluated | None
    test_acc: float | None
    test_loss: float | None
    test_metrics: Mapping[str, float] | None
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


def round_record(
    number: int,
    update: Update,
    move: ServerMove,
    *,
    integrated_norm: float,
    evaluated: Evaluated | None,
    evaluation: Evaluation | None,
    served: Evaluation | None,
    seconds: Seconds,
) -> RoundRecord:
    """Put a round's record together; the arguments are what :class:`RoundRecord` says."""
    return RoundRecord(
        round=number,
        evaluated=evaluated,
        test_acc=evaluation.accuracy if evaluation else None,
        test_loss=evaluation.loss if evaluation else None,
        test_metrics=evaluation.metrics if evaluation else None,
        served_test_acc=served.accuracy if served else None,
        mean_update_norm=update.mean_update_norm,
        mean_client_norm=update.mean_client_norm,
        server_update_norm=move.server_update_norm,
        integrated_norm=integrated_norm,
        client_norms=update.client_norms,
        layers={
            module: LayerRecord(norms.mean_update_norm, norms.mean_client_norm, move.layers[module])
            for module, norms in update.layers.items()
        },
        clients=update.clients,
        rejected=update.rejected,
        degenerate=move.degenerate,
        seconds=seconds,
    )


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
        """Return (round, accuracy) of every round whose accuracy was measured."""
        records = map(json.loads, self._lines())
        return [(r["round"], r["test_acc"]) for r in records if r["test_acc"] is not None]

    def _lines(self) -> Iterator[bytes]:
        """Yield the lines one at a time; one that is too long to be a record comes in pieces."""
        if self.path.exists():
            with self.path.open("rb") as file:
                yield from iter(partial(file.readline, LONGEST_LINE), b"")


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


@dataclass(frozen=True)
class Summary:
    """A finished run.

    Accuracies are the evaluation model's, in [0, 1], the final one of the last tested round; None
    where a user's trainer measures none. ``client_batching`` is how many clients trained in one
    set of kernels.
    """

    recipe: str
    seed: int
    rounds: int
    best_test_acc: float | None
    best_round: int | None
    final_test_acc: float | None
    backend: str
    ranks: int
    device: str
    client_batching: int
    wall_seconds: float
    versions: dict[str, str]

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        write_atomically(path, (json.dumps(asdict(self), indent=2) + "\n").encode())

    @classmethod
    def read(cls, path: Path) -> Summary:
        """Read a finished run's.

        Raises:
            UserError: it is damaged, or of another version of this package.
        """
        fields = _fields(path)
        if fields.keys() != cls.__annotations__.keys():
            raise UserError(
                f"{path}: damaged, or of another version: replace the run with --overwrite"
            )
        return cls(**fields)

    @staticmethod
    def rounds_in(path: Path) -> int:
        """Return how many rounds the finished run in this folder had; 0 if none finished there."""
        rounds = _fields(path).get("rounds")
        return rounds if isinstance(rounds, int) else 0


def _fields(path: Path) -> dict[str, Any]:
    try:
        with open_regular(path, _LONGEST_SUMMARY) as file:
            fields = json.loads(file.read())
    except (OSError, ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def versions() -> dict[str, str]:
    """Return the versions that the numbers may depend on."""
    found = {"python": platform.python_version()}
    for package in ("fednnnn-plugin", "fedml", "torch", "torchvision", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
