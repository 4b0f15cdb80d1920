"""How the clients of a run train: one by one, side by side, or by a custom trainer."""

from functools import partial
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from fednnnn_plugin.client.group_sgd import GroupSGD
from fednnnn_plugin.client.groups import Group, client_bytes
from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.client.replica import Replica, layout_of, named_tensors
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.engine.batches import Batches, LoaderBatches, LoaderData, TensorBatches
from fednnnn_plugin.engine.cohort import Cohort, OwnTest, Training
from fednnnn_plugin.engine.evaluation import Evaluation, batch_to_test
from fednnnn_plugin.engine.forks import Forks, why_not_forked
from fednnnn_plugin.engine.functions import Functions
from fednnnn_plugin.engine.model_check import takes_any_order
from fednnnn_plugin.engine.workers import Failure, Step, Threads, Workers, all_of
from fednnnn_plugin.errors import UserError, printable
from fednnnn_plugin.fingerprint import Fingerprint
from fednnnn_plugin.models import MODELS, is_built_in
from fednnnn_plugin.seeds import isolated_generators
from fednnnn_plugin.server.admission import check_client
from fednnnn_plugin.server.layout import ModelState, State

#: The part of a GPU's memory, less what the run itself needs, that a group's clients may take.
MEMORY = 0.8


class ForeignTester(Protocol):
    """A custom test, such as that of a FedML ``ServerAggregator``."""

    def test(self, state: State, round_number: int) -> Evaluation:
        """Test a model."""


class ForeignTrainer(Protocol):
    """Custom local training, such as a FedML ``ClientTrainer``."""

    def train(self, client: int, state: State, round_number: int) -> State:
        """Return the client's model, trained from ``state``, which may not be kept."""

    def test(self, state: State) -> Evaluation:
        """Test a model."""


class Inputs(NamedTuple):
    """What a run is of; the trainer replaces the engine's local training and test.

    The tester replaces the test alone, a trainer's too; it runs in this process. The fingerprint is
    of what is the user's. The sampler draws the cohorts.
    """

    model: nn.Module
    data: FederatedData | LoaderData
    device: torch.device
    trainer: ForeignTrainer | None = None
    fingerprint: Fingerprint = MappingProxyType({})
    functions: Functions = Functions()
    tester: ForeignTester | None = None

    @property
    def are_ours(self) -> bool:
        """Tell whether model, data and training are this package's own."""
        ours = is_built_in(self.model) and isinstance(self.data, FederatedData)
        return ours and self.trainer is None and not self.functions.train_by_own_code

    def can_train_together(self, sgd: LocalSGD) -> bool:
        """Tell whether several clients can train in one set of kernels."""
        return self.are_ours and sgd.is_plain


def room_on(inputs: Inputs, memory: int) -> int:
    """Return the bytes that clients in training may take of a GPU's ``memory``; 0 of none.

    What the run itself needs is left out: the data, and ten models (the served one and that to be
    tested, the rule's, a replica and its gradient in float32; a sum and a difference in 64 bits).
    It does not depend on what is free at the moment, so that every start of a run gets the same.
    """
    model, data, *_ = inputs
    if not memory:
        return 0
    needs = 64 * sum(parameter.numel() for parameter in model.parameters())
    if isinstance(data, FederatedData):
        parts = (data.train_images, data.train_labels, data.test_images, data.test_labels)
        needs += sum(tensor.nbytes for tensor in parts)
    return max(1, memory - needs)


def widest_group(
    inputs: Inputs, sgd: LocalSGD, setting: Literal["auto", "off"] | int, room: int
) -> int:
    """Return how many clients train together at most: a fixed rule on model and device.

    ``auto`` is one by one on a CPU: on one thread each, a client keeps the bits of every other way
    to run, and that is the faster for the paper's networks. On a GPU, where small kernels leave
    most of it idle, it is as many as fit in ``MEMORY`` of ``room`` bytes.
    """
    if isinstance(setting, int):
        if setting > 1 and not inputs.can_train_together(sgd):
            raise UserError(
                f"train_args.client_batching: {setting}: must be auto or off: only the models "
                f"{', '.join(MODELS)} on this package's data train together, by plain SGD on the "
                "cross-entropy"
            )
        return setting
    if setting == "off" or not room or not inputs.can_train_together(sgd):
        return 1
    model, data, *_ = inputs
    assert isinstance(data, FederatedData)
    largest = max(map(data.client_size, range(data.num_clients)))
    shape = (min(sgd.batch_of(largest), largest), *data.train_images.shape[1:])
    return max(1, int(MEMORY * room) // client_bytes(model, sgd, shape))


def cohort_of(
    inputs: Inputs, sgd: LocalSGD, seed: int, most: int, workers: int, room: int = 0
) -> Cohort:
    """Return what trains clients, at most ``most`` in a group, by so many workers.

    What is not the package's own trains with the global generators seeded for it. ``room`` is for a
    batch of the test: bytes of a GPU.
    """
    model, data, device, trainer, _, functions, _ = inputs
    own_test = _own_test(inputs, seed)
    if trainer is not None:
        assert own_test is not None
        alone = Threads(why="a custom trainer may keep something from round to round")
        by_it = partial(_train_by, trainer)
        return Cohort(model, by_it, own_test, workers=alone, seed=seed, in_steps=False)
    side_by_side = _workers(inputs, workers if most == 1 else 1)
    cohort = partial(
        Cohort,
        model,
        workers=side_by_side,
        seed=None if inputs.are_ours else seed,
        loss=sgd.loss,
        metrics=functions.metrics,
    )
    any_order = inputs.are_ours or _takes_any_order(inputs, side_by_side, seed)
    if not isinstance(data, FederatedData):
        loaded = LoaderBatches(data, sgd, device, any_order=any_order)
        return cohort(partial(_train_alone, sgd, loaded), own_test or loaded)
    size = batch_to_test(model, data.normalised(data.test_images[:1]), int(MEMORY * room))
    batches = TensorBatches(data, sgd, seed, device, any_order=any_order, test_batch=size)
    training: Training = partial(_train_alone, sgd, batches)
    if most > 1:  # the groups train in one memory, one after another
        groups = GroupSGD(sgd, model, batches.images, batches.labels, most, batches.normalisation)
        training = partial(_train_together, groups, batches)
    return cohort(training, own_test or batches)


def _workers(inputs: Inputs, count: int) -> Workers:
    """Return ``count`` workers on a CPU: what is not ours may draw, and needs processes."""
    if inputs.are_ours:
        return Threads(count)
    if inputs.device.type != "cpu":
        return Threads()
    model, data, *_ = inputs
    why = why_not_forked((model, data, inputs.functions.loss, inputs.functions.optimizer))
    # What a loader keeps, such as a generator of its data set's, each client finds as it was.
    anew = isinstance(data, LoaderData)
    forks = Forks(count, layout_of(model).gather(named_tensors(model)), anew=anew)
    try:
        all_of(forks, [] if why else [_differentiate])
    except (Failure, OSError) as error:
        why = printable(error)
    return Threads(why=f"they cannot be used in another process: {why}") if why else forks


def _differentiate(_: Step) -> None:
    """Do what a fork cannot where its parent has, on a machine with a GPU."""
    one = torch.ones((), requires_grad=True)
    torch.autograd.grad(one * one, one)


def _takes_any_order(inputs: Inputs, workers: Workers, seed: int) -> bool:
    """Tell whether a user's model takes the first images of their data in any order of memory."""
    model, data, device, *_ = inputs

    def probe(_: Step) -> bool:
        with isolated_generators(seed, "client"):
            if isinstance(data, FederatedData):
                return takes_any_order(model, data.normalised(data.train_images[:2]))
            loaders = data.train_loaders.values()
            first = next((batch for loader in loaders for batch in loader), None)
        return first is not None and takes_any_order(model, first[0][:2])

    try:
        return device.type == "cpu" and bool(all_of(workers, [probe])[0])
    except (Failure, UserError):  # which the training of a client will say
        return False


def _own_test(inputs: Inputs, seed: int) -> OwnTest | None:
    """Return a custom test, with the global generators seeded for it as for a client."""
    tester, trainer, layout = inputs.tester, inputs.trainer, layout_of(inputs.model)
    if tester is None and trainer is None:
        return None

    def own_test(number: int, state: ModelState) -> Evaluation:
        named = layout.state_dict(state)
        with isolated_generators(seed, "client", 0, 0):
            if tester is not None:
                return tester.test(named, number)
            assert trainer is not None
            return trainer.test(named)

    return own_test


def _train_alone(
    sgd: LocalSGD,
    batches: Batches,
    replica: Replica,
    number: int,
    group: Group,
    correction: Tensor | None,
    before_step: Step,
) -> ModelState:
    """Train the one client of a group: its model is the replica's own, of the same form."""
    alone = None if correction is None else correction[0]
    sgd.in_round(number).train(replica, batches.epochs(group[0], number), before_step, alone)
    check_client(replica.layout.state_dict(replica.state), replica.layout.forms)
    return replica.state.as_group()


def _train_together(
    groups: GroupSGD,
    batches: TensorBatches,
    replica: Replica,
    number: int,
    group: Group,
    correction: Tensor | None,
    before_step: Step,
) -> ModelState:
    """Train a group, each client in the order that it has alone."""
    orders = [batches.orders(client, number) for client in group]
    return groups.train(replica.state, orders, before_step, number, correction)


def _train_by(
    trainer: ForeignTrainer, replica: Replica, number: int, group: Group, *_: object
) -> ModelState:
    """Train the one client of a group with a user's trainer; what it leaves out is as served."""
    layout, served = replica.layout, replica.layout.state_dict(replica.state)
    theirs = trainer.train(group[0], served, number)
    check_client(theirs, layout.forms, layout.buffers)
    trained, device = {**served, **theirs}, replica.vector.device
    vector = layout.flatten(trained).to(device)  # in the model's dtype a wider one may overflow
    dtypes = {name: layout.forms[name][1] for name in layout.buffers}
    buffers = {name: trained[name].detach().to(device, dtypes[name]) for name in dtypes}
    return ModelState(vector, buffers).as_group()
