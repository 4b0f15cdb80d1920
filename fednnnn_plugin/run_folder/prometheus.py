"""A round's numbers as a text file for the textfile collector of Prometheus's node_exporter."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from fednnnn_plugin.files import write_atomically
from fednnnn_plugin.quantities import RoundRecord


def write_prometheus(path: Path, record: RoundRecord) -> None:
    """Write the last round's numbers, atomically; one that was not measured is left out."""
    lines = []
    for name, what, value in _gauges(record):
        if value is not None:
            full = f"fednnnn_{name}"
            lines += [f"# HELP {full} {what}", f"# TYPE {full} gauge", f"{full} {value!r}"]
    write_atomically(path, "".join(f"{line}\n" for line in lines).encode())


def _gauges(record: RoundRecord) -> Iterator[tuple[str, str, float | None]]:
    n, e = record.mean_update_norm, record.mean_client_norm
    yield "round", "Number of the last round.", record.round
    yield "mean_update_norm", "N, the norm of the average update.", n
    yield "mean_client_norm", "E, the mean norm of the updates of clients.", e
    yield "norm_ratio", "N/E.", n / e if e > 0 else None
    yield "test_accuracy", "Accuracy of the evaluation model, from 0 to 1.", record.test_acc
    yield "clients", "Clients that the round averages.", record.clients
    yield "clients_rejected", "Clients that it rejected.", record.rejected
    yield "clients_clipped", "Clients that it clipped.", record.clipped
    yield "round_seconds", "Wall time of the round.", record.seconds.total
    if record.time is not None:
        ended = datetime.fromisoformat(record.time.replace("Z", "+00:00")).timestamp()
        yield "round_end_seconds", "When the round ended, in seconds since 1970.", ended
