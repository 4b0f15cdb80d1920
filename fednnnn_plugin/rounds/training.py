"""How the clients of a run train: alone, together in one set of kernels, or by a custom trainer."""

from typing import Protocol

from fednnnn_plugin.client.correction import Correction
from fednnnn_plugin.client.group_sgd import Group, GroupSGD, Staged
from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.client.replica import Replica
from fednnnn_plugin.processes.workers import Step
from fednnnn_plugin.rounds.batches import Batches, TensorBatches
from fednnnn_plugin.run_folder.records import Evaluation
from fednnnn_plugin.seeds import derive_seed
from fednnnn_plugin.server.admission import check_client
from fednnnn_plugin.server.layout import ModelState, State


class ForeignTester(Protocol):
    """A custom test, such as that of a FedML ``ServerAggregator``."""

    def test(self, state: State, round_number: int) -> Evaluation:
        """Test a model."""


class ForeignTrainer(ForeignTester, Protocol):
    """Custom local training, such as a FedML ``ClientTrainer``."""

    def train(self, client: int, state: State, round_number: int) -> State:
        """Return the client's model, trained from ``state``, which may not be kept."""


def train_alone(
    sgd: LocalSGD,
    batches: Batches,
    replica: Replica,
    number: int,
    group: Group,
    correction: Correction | None,
    before_step: Step,
) -> ModelState:
    """Train the one client of a group: its model is the replica's own, of the same form."""
    sgd.in_round(number).train(replica, batches.epochs(group[0], number), before_step, correction)
    replica.check_trained()
    return replica.state.as_group()


class TrainTogether:
    """Trains a group, each client in the order that it has alone.

    A ``seed`` is of a model that may draw: each client draws from a generator of its own. With
    ``ahead`` a group that trains in round after round has its batches of the next one staged when
    the steps of this one are launched: a GPU still computes them, and the host would wait. Where a
    training fails, the memory of the groups is given back.
    """

    def __init__(
        self, groups: GroupSGD, batches: TensorBatches, seed: int | None, *, ahead: bool
    ) -> None:
        self._groups, self._batches, self._seed, self._ahead = groups, batches, seed, ahead
        self._last: dict[Group, int] = {}  # the round in which a group trained
        self._staged: dict[tuple[int, Group], Staged] = {}

    def __call__(
        self,
        replica: Replica,
        number: int,
        group: Group,
        correction: Correction | None,
        before_step: Step,
    ) -> ModelState:
        """Train a group in a round; see :data:`Training`."""
        staged = self._staged.pop((number, group), None)
        if staged is None:
            self._staged.clear()
            staged = self._stage(number, group)
        own = self._seed
        seeds = [] if own is None else [derive_seed(own, "client", number, k) for k in group]
        state = replica.state
        try:
            models = self._groups.train(
                state, staged, before_step, number, correction, seeds, group
            )
        except BaseException:
            self.give_back_memory()
            raise
        if self._ahead and self._last.get(group) == number - 1:
            self._staged[number + 1, group] = self._stage(number + 1, group)
        self._last = {other: last for other, last in self._last.items() if last >= number - 1}
        self._last[group] = number
        return models

    def give_back_memory(self) -> None:
        """Let go of what the next round would use again."""
        self._staged.clear()
        self._groups.give_back_memory()

    def _stage(self, number: int, group: Group) -> Staged:
        return self._groups.stage([self._batches.orders(client, number) for client in group])


def train_by(
    trainer: ForeignTrainer, replica: Replica, number: int, group: Group, *_: object
) -> ModelState:
    """Train the one client of a group with a user's trainer; what it leaves out is as served."""
    layout, served = replica.layout, replica.layout.state_dict(replica.state)
    theirs = trainer.train(group[0], served, number)
    check_client(theirs, layout.forms, layout.buffers)
    trained = layout.taken({**served, **theirs})
    return trained.map(lambda tensor: tensor.to(replica.vector.device)).as_group()
