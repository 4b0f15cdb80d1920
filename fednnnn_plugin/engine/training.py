"""How the clients of a run train: one by one, side by side, or by a user's own trainer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple, Protocol

import torch
from torch import nn

from fednnnn_plugin.client.group_sgd import GroupSGD
from fednnnn_plugin.client.groups import Group, client_bytes
from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.client.replica import Replica
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.engine.batches import Batches, LoaderBatches, LoaderData, TensorBatches
from fednnnn_plugin.engine.cohort import Cohort, Training
from fednnnn_plugin.engine.evaluation import Evaluation
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.models import MODELS
from fednnnn_plugin.server.layout import ModelState, State

#: The part of a GPU's free memory that a group's clients may take.
MEMORY = 0.8


class ForeignTrainer(Protocol):
    """A user's own local training, such as a FedML ``ClientTrainer``."""

    def train(self, client: int, state: State, round_number: int) -> State:
        """Return the client's model, trained from ``state``, which may not be kept."""

    def test(self, state: State) -> Evaluation:
        """Test a model."""


class Inputs(NamedTuple):
    """What a run is of; the trainer replaces the engine's local training and test."""

    model: nn.Module
    data: FederatedData | LoaderData
    device: torch.device
    trainer: ForeignTrainer | None = None

    @property
    def are_ours(self) -> bool:
        """Tell whether model, data and training are this package's own."""
        ours = type(self.model) in MODELS.values() and isinstance(self.data, FederatedData)
        return ours and self.trainer is None


def widest_group(
    inputs: Inputs, sgd: LocalSGD, setting: Literal["auto", "off"] | int, free: int
) -> int:
    """Return how many clients train together at most: a fixed rule on model and device.

    ``auto`` is one by one on a CPU: on one thread each, a client keeps the bits of every other way
    to run, and that is the faster for the paper's networks. On a GPU, where small kernels leave
    most of it idle, it is as many as fit in ``MEMORY`` of the bytes that are ``free``.
    """
    if isinstance(setting, int):
        if setting > 1 and not inputs.are_ours:
            raise UserError(
                f"train_args.client_batching: {setting}: must be auto or off: only the models "
                f"{', '.join(MODELS)} on this package's data train together"
            )
        return setting
    model, data, *_ = inputs
    if setting == "off" or not free or not inputs.are_ours or not isinstance(data, FederatedData):
        return 1
    largest = max(map(data.client_size, range(data.num_clients)))
    shape = (min(sgd.batch_of(largest), largest), *data.train_images.shape[1:])
    return max(1, int(MEMORY * free) // client_bytes(model, sgd, shape))


def cohort_of(inputs: Inputs, sgd: LocalSGD, seed: int, most: int, workers: int) -> Cohort:
    """Return what trains clients, at most ``most`` in a group, by so many workers.

    What is not the package's own trains one at a time, with the global generators seeded for it.
    """
    model, data, device, trainer = inputs
    batches: Batches
    training: Training
    if isinstance(data, FederatedData):
        batches = TensorBatches(data, sgd, seed, device, any_order=inputs.are_ours)
        if most > 1:
            together = GroupSGD(sgd, model, batches.images, batches.labels, most)
            training = partial(_train_together, together, batches)
            # The groups train in one memory, one after another.
            return Cohort(model, training, batches)
    else:
        batches = LoaderBatches(data, sgd, device)
    training = partial(_train_alone, sgd, batches)
    if trainer is not None:
        training = partial(_train_by, trainer)
    own_seed = None if inputs.are_ours else seed
    return Cohort(model, training, batches, workers=workers, seed=own_seed)


def _train_alone(
    sgd: LocalSGD,
    batches: Batches,
    replica: Replica,
    round_number: int,
    group: Group,
    before_step: Callable[[], None],
) -> ModelState:
    """Train the one client of a group: its model is the replica's own."""
    sgd.train(replica, batches.epochs(group[0], round_number), before_step)
    return replica.state.as_group()


def _train_together(
    together: GroupSGD,
    batches: TensorBatches,
    replica: Replica,
    round_number: int,
    group: Group,
    before_step: Callable[[], None],
) -> ModelState:
    """Train a group, each client in the order that it has alone."""
    orders = [batches.orders(client, round_number) for client in group]
    return together.train(replica.state, orders, before_step)


def _train_by(
    trainer: ForeignTrainer,
    replica: Replica,
    round_number: int,
    group: Group,
    before_step: Callable[[], None],
) -> State:
    """Train the one client of a group with a user's trainer."""
    served = replica.layout.state_dict(replica.state)
    return trainer.train(group[0], served, round_number)
