"""What clients reply, and what a round's numbers are in Flower's records."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from flwr.app import Message, MetricRecord
from flwr.app.typing import MetricRecordValues
from flwr.serverapp.exception import InconsistentMessageReplies
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords
from torch import Tensor

from fednnnn_plugin.errors import UserError, reason
from fednnnn_plugin.run_folder.records import Evaluation
from fednnnn_plugin.run_folder.results import ClientResult
from fednnnn_plugin.server.admission import checked_positive
from fednnnn_plugin.server.server import ServerMove
from fednnnn_plugin.server.update import Update

_log = logging.getLogger("flwr")  # which `flwr run` shows


def model_of(reply: Message) -> dict[str, Tensor]:
    """Return the model of a reply by names, or raise what says that it has none."""
    if reply.has_error():
        raise UserError(f"error {reply.error.code}", reply.error.reason)
    records = [*reply.content.array_records.values()]
    if len(records) != 1:
        raise UserError(f"{len(records)} ArrayRecords", allowed="must be one")
    return dict(records[0].to_torch_state_dict())


def weight_of(reply: Message, key: str) -> float:
    """Return the weight that a reply's metrics have under a key; refuse one that is none."""
    records = reply.content.metric_records.values()
    given = [metrics[key] for metrics in records if key in metrics]
    if len(given) != 1 or isinstance(given[0], list):
        raise UserError(key, allowed="must be one number in its metrics, the client's weight")
    return checked_positive(key, given[0])


def round_metrics(update: Update, move: ServerMove, failed: int) -> dict[str, MetricRecordValues]:
    """Return what a round's ``MetricRecord`` says of it; N/E is NaN where no client moved."""
    n, e = update.mean_update_norm, update.mean_client_norm
    return {
        "N": n,
        "E": e,
        "N/E": n / e if e else math.nan,
        "client-norms": list(update.client_norms),
        "server-update-norm": move.server_update_norm,
        "clients": update.clients,
        "rejected": update.rejected,
        "failed": failed,
        "clipped": update.clipped,
    }


def client_result(reply: Message, samples_key: str) -> ClientResult | None:
    """Return what a client found on its own data, None where it sent no accuracy and no loss."""
    if not reply.has_content() or len(reply.content.metric_records) != 1:
        return None
    metrics = next(iter(reply.content.metric_records.values()))
    found, samples = evaluation_of(metrics), metrics.get(samples_key)
    if found.accuracy is None and found.loss is None:
        return None
    count = int(samples) if isinstance(samples, int | float) and 0 <= samples < math.inf else 0
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


def averaged_if_fit(averaged: Callable[[], MetricRecord | None], by: object) -> MetricRecord | None:
    """Return clients' metrics averaged ``by`` a function, None where they do not fit each other.

    What a function of the user's raises is raised.
    """
    unfit: tuple[type[Exception], ...] = (InconsistentMessageReplies,)
    if by is aggregate_metricrecords:  # weights of 0, lists of other lengths, a list and a number
        unfit += (ArithmeticError, TypeError, ValueError)
    try:
        return averaged()
    except unfit as error:
        _log.warning("clients' metrics: left out: %s", reason(error))
        return None
