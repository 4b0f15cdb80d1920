"""What clients reply: their models and weights."""

from flwr.app import Message
from torch import Tensor

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.server.admission import checked_positive


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
