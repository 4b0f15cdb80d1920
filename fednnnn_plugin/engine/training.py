"""How the clients of a run train: one by one, side by side, or by a user's own trainer."""

from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol

import torch
from torch import nn

from fednnnn_plugin.client.group_sgd import GroupSGD
from fednnnn_plugin.client.groups import Group, client_bytes
from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.client.replica import Replica, layout_of
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.engine.batches import Batches, LoaderBatches, LoaderData, TensorBatches
from fednnnn_plugin.engine.cohort import Cohort, Step, Training
from fednnnn_plugin.engine.evaluation import Evaluation
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.fingerprint import Fingerprint
from fednnnn_plugin.models import MODELS
from fednnnn_plugin.server.admission import check_client
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
    """What a run is of; the trainer replaces the engine's local training and test.

    The fingerprint is of what in it is the user's.
    """

    model: nn.Module
    data: FederatedData | LoaderData
    device: torch.device
    trainer: ForeignTrainer | None = None
    fingerprint: Fingerprint = MappingProxyType({})

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
    model, data, device, trainer, _ = inputs
    batches: Batches
    if isinstance(data, FederatedData):
        batches = TensorBatches(data, sgd, seed, device, any_order=inputs.are_ours)
        if most > 1:  # the groups train in one memory, one after another
            groups = GroupSGD(sgd, model, batches.images, batches.labels, most)
            return Cohort(model, _together(groups, batches), batches)
    else:
        batches = LoaderBatches(data, sgd, device)
    if trainer is None:
        own_seed = None if inputs.are_ours else seed
        return Cohort(model, _alone(sgd, batches), batches, workers=workers, seed=own_seed)
    layout = layout_of(model)

    def own_test(state: ModelState) -> Evaluation:
        return trainer.test(layout.state_dict(state))

    return Cohort(model, _by(trainer), batches, seed=seed, own_test=own_test)


def _alone(sgd: LocalSGD, batches: Batches) -> Training:
    """Train the one client of a group: its model is the replica's own, of the same form."""

    def train(replica: Replica, number: int, group: Group, before_step: Step) -> ModelState:
        sgd.train(replica, batches.epochs(group[0], number), before_step)
        check_client(replica.layout.state_dict(replica.state), replica.layout.forms)
        return replica.state.as_group()

    return train


def _together(groups: GroupSGD, batches: TensorBatches) -> Training:
    """Train a group, each client in the order that it has alone."""

    def train(replica: Replica, number: int, group: Group, before_step: Step) -> ModelState:
        orders = [batches.orders(client, number) for client in group]
        return groups.train(replica.state, orders, before_step)

    return train


def _by(trainer: ForeignTrainer) -> Training:
    """Train the one client of a group with a user's trainer."""

    def train(replica: Replica, number: int, group: Group, before_step: Step) -> State:
        return trainer.train(group[0], replica.layout.state_dict(replica.state), number)

    return train
