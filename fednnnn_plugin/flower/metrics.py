"""What a round's numbers are in Flower's records, and its metrics in ours."""

import math

from flwr.app import Message, MetricRecord
from flwr.app.typing import MetricRecordValues

from fednnnn_plugin.run_folder.kept_server import Round
from fednnnn_plugin.run_folder.records import Evaluation
from fednnnn_plugin.run_folder.results import ClientResult


def round_metrics(closed: Round) -> dict[str, MetricRecordValues]:
    """Return what a round's ``MetricRecord`` says of it; N/E is NaN where no client moved."""
    update, clients = closed.update, closed.clients
    n, e = update.mean_update_norm, update.mean_client_norm
    return {
        "N": n,
        "E": e,
        "N/E": n / e if e else math.nan,
        "client-norms": list(update.client_norms),
        "server-update-norm": closed.move.server_update_norm,
        "clients": update.clients,
        "rejected": clients.rejected,
        "failed": clients.failed,
        "clipped": sum(client.clipped for client in clients.accepted),
    }


def client_result(reply: Message, samples_key: str) -> ClientResult | None:
    """Return what a client found on its own data, None where it sent no accuracy and no loss."""
    if not reply.has_content() or len(reply.content.metric_records) != 1:
        return None
    metrics = next(iter(reply.content.metric_records.values()))
    found, samples = evaluation_of(metrics), metrics.get(samples_key)
    if found.accuracy is None and found.loss is None:
        return None
    count = int(samples) if isinstance(samples, int | float) and samples >= 0 else 0
    return ClientResult(f"node {reply.metadata.src_node_id}", count, found.accuracy, found.loss)


def evaluation_of(metrics: MetricRecord) -> Evaluation:
    """Return a test's numbers: ``accuracy`` in [0, 1], ``loss``, and all others by their names."""
    found = {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }
    accuracy = found.pop("accuracy") if 0 <= found.get("accuracy", -1) <= 1 else None
    loss = found.pop("loss", None)
    return Evaluation(accuracy, loss, found or None)
