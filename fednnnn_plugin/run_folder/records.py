"""What a run leaves on record: an object a round in ``metrics.jsonl``, and ``summary.json``."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from fednnnn_plugin.files import read_regular, write_atomically
from fednnnn_plugin.quantities import ClientNorms, LayerRecord, RoundRecord, Seconds, read_record
from fednnnn_plugin.run_folder.line_file import LineFile
from fednnnn_plugin.run_folder.results import NO_RESULTS, Results
from fednnnn_plugin.server.rules import Evaluated
from fednnnn_plugin.server.server import ServerMove
from fednnnn_plugin.server.update import Measured, Update

_LONGEST_SUMMARY = 1 << 20  # bytes


@dataclass(frozen=True)
class Evaluation:
    """What the test of a model found.

    Accuracy is in [0, 1], the loss a mean over samples; None where targets are no
    classes, a user's trainer does not measure it, or the loss is not finite. ``metrics`` is what
    else is measured, by name; ``by_class`` how many samples each class has, and how many of them
    are correct, where that was counted.
    """

    accuracy: float | None = None
    loss: float | None = None
    metrics: dict[str, float] | None = None
    by_class: Sequence[tuple[int, int]] = ()


def round_record(
    number: int,
    update: Update,
    move: ServerMove,
    *,
    integrated_norm: float,
    evaluated: Evaluated | None,
    seconds: Seconds,
    evaluation: Evaluation | None = None,
    served: Evaluation | None = None,
    learning_rate: float | None = None,
    measured: Measured = "update",
    results: Results = NO_RESULTS,
) -> RoundRecord:
    """Put a round's record together; models that were not tested have no evaluation."""
    tested, served = evaluation or Evaluation(), served or Evaluation()
    counted = {
        each.name: getattr(of, each.name)
        for of in (update, move)
        for each in fields(RoundRecord)
        if hasattr(of, each.name)
    }
    counted |= results.spreads
    counted["client_norms"] = ClientNorms(*update.client_norms)
    counted["layers"] = {
        module: LayerRecord(**vars(norms), server_update_norm=move.layers[module])
        for module, norms in update.layers.items()
    }
    return RoundRecord(
        round=number,
        tested=evaluation is not None,
        evaluated=evaluated,
        test_acc=tested.accuracy,
        test_loss=tested.loss,
        test_metrics=tested.metrics,
        served_test_acc=served.accuracy,
        served_test_loss=served.loss,
        served_test_metrics=served.metrics,
        integrated_norm=integrated_norm,
        seconds=seconds,
        client_learning_rate=learning_rate,
        measured=measured,
        **counted,
    )


class MetricsFile(LineFile):
    """The records of a run, a line each."""

    def append(self, record: RoundRecord) -> None:
        """Add one round's line."""
        self.write(record.to_json().encode() + b"\n")

    def replace_last(self, record: RoundRecord) -> None:
        """Write the last round's line anew, in a new file: a reader sees the old or the new one."""
        *before, _ = self.lines()
        write_atomically(self.path, b"".join(before) + record.to_json().encode() + b"\n")

    def rounds(self) -> int:
        """Return how many rounds are on record: whole lines from the first one on."""
        return sum(1 for _ in self.records())

    def cut(self, rounds: int) -> None:
        """Drop what was written after so many rounds, whole lines or parts of one."""
        self.shorten(sum(map(len, islice(self.lines(), rounds))))

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the whole records, from the first round on."""
        for number, line in enumerate(self.lines(), start=1):
            try:
                recorded = read_record(line)
            except ValidationError:
                return
            if recorded["round"] != number or not line.endswith(b"\n"):
                return
            if None in (recorded["integrated_norm"], recorded["seconds"]):
                return  # without them a run cannot be continued
            yield recorded


def best_and_last(
    found: Sequence[tuple[int, float | None]], *, higher_is_better: bool = True
) -> tuple[float | None, int | None, float | None]:
    """Return the best value of the tested rounds, the first that has it, and the last round's.

    A test may have found none.
    """
    values = [value for _, value in found if value is not None]
    if not values:
        return None, None, None
    best = (max if higher_is_better else min)(values)
    return best, next(number for number, value in found if value == best), found[-1][1]


@dataclass(frozen=True)
class Summary:
    """A run up to its last checkpoint, which is in round ``rounds``.

    Accuracies are the evaluation model's, in [0, 1], the final one of the last tested round; None
    where a user's trainer measures none. ``client_batching`` is how many clients trained
    together, as one batched model. ``commit`` is that of the clone which the package runs from;
    None where it was installed from elsewhere. ``workers`` is how many such groups each process of
    the run trained in parallel; None in a folder of an older version. ``metric`` is the first that
    the recipe names, if it does, with its results. ``stopped`` is why the run ended before its last
    round, None where it did not.
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
    client_batching: Annotated[int, Field(ge=1)]
    wall_seconds: float
    versions: dict[str, str]
    commit: str | None = None
    workers: int | None = None
    metric: str | None = None
    best_metric: float | None = None
    best_metric_round: int | None = None
    final_metric: float | None = None
    higher_is_better: bool | None = None  # of the metric
    stopped: str | None = None

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        values = asdict(self)
        if self.stopped is None:
            del values["stopped"]
        write_atomically(path, (json.dumps(values, indent=2) + "\n").encode())

    @classmethod
    def read(cls, path: Path) -> "Summary | None":
        """Read a run's; None where there is none that is whole, as this version has it."""
        try:
            content = read_regular(path, _LONGEST_SUMMARY)
            return TypeAdapter(cls).validate_json(content, strict=True)
        except (OSError, ValidationError):
            return None
