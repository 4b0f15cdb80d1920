"""Clients in this process, in the place of Flower's SuperLink and SuperNodes."""

from collections.abc import Callable, Iterable

import torch
from flwr.app import ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor

State = dict[str, Tensor]
#: What a client does with the round's number and the model: a model, another content, an error.
Train = Callable[[int, State], State | RecordDict | Error]


class ClientsHere(Grid):
    """Node k is ``clients[k]``; ``samples`` of a round's number and k are its examples."""

    def __init__(
        self, clients: dict[int, Train], samples: Callable[[int, int], float] = lambda *_: 1.0
    ) -> None:
        self.clients, self.samples = clients, samples
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # of the ServerApp
        self.found: dict[int, dict[str, float]] = {}  # what a client measures
        self.sent: list[tuple[str, int, State]] = []  # kind, round and model of each message

    def get_node_ids(self) -> Iterable[int]:
        return list(self.clients)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return [self._reply(message) for message in messages]

    def _reply(self, message: Message) -> Message:
        node, kind = message.metadata.dst_node_id, message.metadata.message_type
        number = int(message.content["config"]["server-round"])
        state = dict(message.content["arrays"].to_torch_state_dict())
        self.sent.append((kind, number, state))
        numbers = {"num-examples": self.samples(number, node)}
        if kind == "train":
            with torch.random.fork_rng():
                content = self.clients[node](number, {n: x.clone() for n, x in state.items()})
            if isinstance(content, dict):
                metrics = MetricRecord(numbers | {"train-loss": float(node)})
                content = RecordDict({"arrays": ArrayRecord(content), "metrics": metrics})
        else:
            found = numbers | {"tested-in": number} | self.found.get(node, {})
            content = RecordDict({"metrics": MetricRecord(found)})
        return Message(content, reply_to=message)

    # What strategies do not call.
    run = set_run = create_message = push_messages = pull_messages = None
