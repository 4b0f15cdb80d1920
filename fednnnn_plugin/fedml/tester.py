"""A custom ``ServerAggregator`` as the tester of the evaluation model, and what it finds."""

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from fedml.core.alg_frame.server_aggregator import ServerAggregator
from fedml.ml.aggregator.aggregator_creator import create_server_aggregator
from fedml.ml.aggregator.default_aggregator import DefaultServerAggregator
from torch import nn

from fednnnn_plugin.client.loss import CROSS_ENTROPY, LOSSES
from fednnnn_plugin.client.replica import saved_tensors
from fednnnn_plugin.errors import UserError, reason
from fednnnn_plugin.fedml.loaders import FedMLDataset
from fednnnn_plugin.fedml.model_states import whole_state
from fednnnn_plugin.fedml.tester_results import ResultReader
from fednnnn_plugin.rounds.evaluation import evaluation, tally
from fednnnn_plugin.run_folder.records import Evaluation
from fednnnn_plugin.server.layout import State

_log = logging.getLogger(__name__)

AGGREGATING = ("on_before_aggregation", "aggregate", "on_after_aggregation")


class Tester:
    """Calls ``test`` and ``test_all`` of a user's aggregator on a state of ``model``.

    The aggregator may know that module by several names, so the module holds the state during a
    call, and what it held before is put back.

    Raises:
        UserError: the aggregator aggregates by itself.
    """

    def __init__(self, aggregator: ServerAggregator, model: nn.Module) -> None:
        refuse_replaced(aggregator, ServerAggregator, AGGREGATING, "the method would not be used")
        self._aggregator, self._model = aggregator, model
        self._results = ResultReader("server_aggregator")
        self._of_all: Any = None

    def set_id(self, aggregator_id: int) -> None:
        """Give the aggregator its number, as FedML does before the first round."""
        self._aggregator.set_id(aggregator_id)

    def test(self, state: State, test_data: Any, device: Any, args: Any) -> Any:
        """Return what it finds on the server's test data, which may be None."""
        with self._holding(state):
            return self._aggregator.test(test_data, device, for_test(args))

    def test_all(
        self, state: State, train_data: Any, test_data: Any, device: Any, args: Any
    ) -> Any:
        """Return what it finds on the clients' data."""
        with self._holding(state):
            self._of_all = self._aggregator.test_all(train_data, test_data, device, for_test(args))
        return self._of_all

    def evaluation(self, found: Any) -> Evaluation:
        """Return what :meth:`test` found, with what :meth:`test_all` has found since the last."""
        of_all, self._of_all = self._of_all, None
        return self._results.evaluation(of_all, found)

    @contextmanager
    def _holding(self, state: State) -> Iterator[None]:
        model = self._model
        model.train()  # a state may follow the mode
        before = whole_state(model, model.state_dict())
        try:
            model.load_state_dict(whole_state(model, state), strict=False)
            self._aggregator.set_model_params(whole_state(model, state))
            yield
        finally:
            model.train()
            for name, tensor in saved_tensors(model):  # it may have called half()
                if name in before:
                    tensor.data = tensor.data.to(before[name].dtype)
            model.load_state_dict(before, strict=False)


class FedMLsTester(Tester):
    """FedML's own tester, which knows its tasks, on a ``model`` that no one else uses.

    Of classification it reports what we count, by the recipe's loss if it is one of ours: of
    labels ``[n, L]`` its own loss is L times too small, it takes those to be ignored for wrong,
    and it counts none of the size of images.
    """

    def __init__(self, model: nn.Module, args: Any) -> None:
        self._loss = LOSSES.get(str(getattr(args, "loss", None)), CROSS_ENTROPY)
        theirs = create_server_aggregator(model, for_test(args))
        if isinstance(theirs, DefaultServerAggregator):
            theirs._test = self._counts
        super().__init__(theirs, model)

    def test(self, state: State, test_data: Any, device: Any, args: Any) -> Any:
        """Return (accuracy, loss, None, None)."""
        if test_data is None:
            _log.warning("not tested: the server has no test data")
            return None, None, None, None
        return super().test(state, test_data, device, args)

    def _counts(self, test_data: Any, device: Any, _args: Any) -> dict[str, float]:
        """Return means, as FedML's counts of one sample."""
        try:
            found = self._evaluation(test_data, device)
        except ValueError as error:  # a trainer of FedML's, or a user's, reads `loss` otherwise
            if self._loss is CROSS_ENTROPY:
                raise
            why = "loss: %s: does not fit the outputs and the test's labels: tested by %s: %s"
            _log.warning(why, self._loss.name, CROSS_ENTROPY.name, reason(error))
            self._loss = CROSS_ENTROPY
            found = self._evaluation(test_data, device)
        means = {"test_correct": found.accuracy, "test_loss": found.loss, "test_total": 1}
        return {name: math.nan if value is None else value for name, value in means.items()}

    def _evaluation(self, test_data: Any, device: Any) -> Evaluation:
        self._model.to(device)
        self._model.eval()
        batches = ((x.to(device), y.to(device)) for x, y in test_data)
        return evaluation(tally(self._model, batch, self._loss) for batch in batches)

    def test_all(self, *_: Any) -> bool:
        """Let FedML do nothing more, which does not test on the clients' data."""
        return True


class SimulationTester:
    """Tests each round of a simulation as FedML's cross-silo server does: all clients, then itself.

    It sets ``args.round_idx``.
    """

    def __init__(
        self,
        aggregator: ServerAggregator,
        model: nn.Module,
        args: Any,
        device: torch.device,
        dataset: FedMLDataset,
    ) -> None:
        self._tester, self._args, self._device = Tester(aggregator, model), args, device
        self._test_data, self._locals = dataset[3], dataset[5:7]
        self._tester.set_id(-1)  # FedML's, of a simulation's server

    def test(self, state: State, round_number: int) -> Evaluation:
        """Return what both tests found."""
        device, args = self._device, self._args
        args.round_idx = round_number - 1
        train, local = self._locals
        self._tester.test_all(state, train, local, device, args)
        return self._tester.evaluation(self._tester.test(state, self._test_data, device, args))


def refuse_replaced(
    given: ServerAggregator, base: type[ServerAggregator], names: Sequence[str], why: str
) -> None:
    """Refuse an aggregator that replaces a method of ``base``, in its class or on itself."""
    replaced = [
        name
        for name in names
        if getattr(type(given), name) is not getattr(base, name) or name in vars(given)
    ]
    if replaced:
        raise UserError(
            "server_aggregator",
            f"{type(given).__name__}: replaces {', '.join(replaced)}: {why}; test what you like "
            "in a ServerAggregator with test and test_all alone, and give that to "
            "FedNNNNAggregator(model, args, tester=...), or to FedMLRunner where "
            "federated_optimizer names our method",
        )


def for_test(args: Any) -> SimpleNamespace:
    """Return the arguments with all that FedML's testers read."""
    read = {"dataset": "custom", "enable_wandb": False, "round_idx": 0}
    return SimpleNamespace(**read | vars(args))
