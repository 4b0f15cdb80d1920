"""FedNNNN and its relatives as the server aggregator of a FedML cross-silo federation."""

import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from fedml.core.alg_frame.server_aggregator import ServerAggregator
from torch import Tensor, nn

from fednnnn_plugin.client.replica import layout_of, named_tensors
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.fedml.methods import in_scripts
from fednnnn_plugin.fedml.model_states import served_copy, whole_state, with_noise
from fednnnn_plugin.fedml.processes import end_federation_together, log_through_fedml
from fednnnn_plugin.fedml.round_clients import RoundClients
from fednnnn_plugin.fedml.security import (
    ClientModel,
    check_security,
    global_privacy,
    security_settings,
)
from fednnnn_plugin.fedml.server_files import ServerFiles
from fednnnn_plugin.fedml.settings import continue_from_state, recorded_settings, server_recipe
from fednnnn_plugin.fedml.silo_records import SiloRecords, settings_line
from fednnnn_plugin.fedml.silos import check_silos
from fednnnn_plugin.fedml.tester import AGGREGATING, FedMLsTester, Tester, refuse_replaced
from fednnnn_plugin.processes.numerics import numerics
from fednnnn_plugin.recipe.schema import TrackingArgs
from fednnnn_plugin.run_folder.server_state import check_continued, restored, standing
from fednnnn_plugin.server.average import ClientSum
from fednnnn_plugin.server.server import Server

_log = logging.getLogger(__name__)
# State, records and the tested model depend on them.
_KEPT = (*AGGREGATING, "set_id", "get_model_params", "set_model_params", "test", "test_all")


class FedNNNNAggregator(ServerAggregator):  # type: ignore[misc]
    r"""A FedML ``ServerAggregator`` with the paper's server rules (eqs. 3, 8 and 10 to 13).

    It also takes every other rule of :data:`~fednnnn_plugin.server.rules.RULES`, each with its own
    evaluation model.

    ``model`` is the *served* model, which FedML sends to the clients. In each round the rule
    computes the next served model from the clients' models. Their plain average :math:`w_t + S` is
    the *evaluation* model, which :meth:`test` reports. ``w_t`` is what the last
    :meth:`set_model_params` set, including noise. Updates, momentum and the rule are in float32 at
    least, on the device to which FedML moves the clients' models; what is sent has the model's
    dtypes, on the CPU.

    From ``args`` it reads ``beta`` and ``gamma`` (no default), or the coefficients of another
    method, ``client_weighting`` (``uniform``), ``max_client_norm`` (None), ``max_client_failures``
    (0), ``random_seed`` (0), ``client_num_in_total`` and ``client_num_per_round`` (no default),
    ``start_round`` (0), the number of rounds that are done, and ``comm_round``, those that are
    left; under ``start_round: auto`` the state says how many are
    done, and ``comm_round`` is the total. Three paths are optional: ``server_state_path``, a file
    for the server's state; ``save_path``, a file for the evaluation model; and ``metrics_path``, a
    folder for the records of rounds. In a client's process (``role: client``) it uses none of
    these files.

    In the last of ``comm_round`` rounds it returns the evaluation model instead of the served
    one: FedML sends it to all silos, reports it and leaves it in ``model``. The served model and
    the momentum are stored in ``server_state_path``.

    Args:
        model: ``w_0``.
        args: FedML's arguments.
        method: a name in :data:`~fednnnn_plugin.server.rules.RULES`, or ``"module:Class"`` with
            ``FEDNNNN_ALLOW_CODE=1`` in the environment; by default ``args.federated_optimizer`` if
            that is one, else FedNNNN.
        tester: your own ``ServerAggregator``, whose ``test`` and ``test_all`` test the evaluation
            model, which is also put into its ``model``; by default FedML's test is used.

    Raises:
        UserError: a setting that is missing or out of range; a FedML setting that cannot work with
            this aggregation; a server state that is not of ``start_round``; a tester that
            overrides the aggregation; a subclass that overrides a method which state and records
            depend on, even if it calls ours by ``super()``, which cannot be checked.

    Example::

        FedMLRunner(args, device, dataset, model,
                    server_aggregator=FedNNNNAggregator(model, args)).run()
    """

    @in_scripts
    def __init__(
        self,
        model: nn.Module,
        args: Any,
        method: str | None = None,
        tester: ServerAggregator | None = None,
    ) -> None:
        end_federation_together(args)
        self._check_own()
        is_server = getattr(args, "role", "server") != "client"  # FedML's scripts build one in each
        self.is_at_its_state = is_server and continue_from_state(args)
        self._recipe = server_recipe(args, method)
        self._train = self._recipe.train_args
        tested = served_copy(model)
        self._server = Server(self._recipe.rule, self._recipe.rule_settings, layout_of(model))
        # Of the last round. What is served is the model itself: a script may set its weights.
        self._state = self._server.start(named_tensors(model))
        for warning in self._server.try_rule(self._state):
            _log.warning(warning)
        check_security(args)
        # FedML's own tester knows its tasks; it gets a model of its own, and goes first: both
        # constructors start FedML's privacy and defences anew.
        self._tester = FedMLsTester(tested, args) if tester is None else Tester(tester, model)
        super().__init__(model, args)
        self.rounds_done = self._train.start_round  #: of the federation
        limit, layout = self._train.max_client_failures, self._server.layout
        self._clients = RoundClients(args, model, layout, limit, self.rounds_done + 1)
        log_through_fedml()
        self._last_round = self.rounds_done + self._train.comm_round
        if not is_server:
            self._recipe = self._recipe.model_copy(update={"tracking_args": TrackingArgs()})
        self._files = ServerFiles(self._recipe.tracking_args)
        self._settings = recorded_settings(self._recipe, args)
        self._settings["train_args"] |= security_settings(args)
        self.state_path = self._files.state_path  #: where the server's state is stored, if it is
        if is_server:
            if getattr(args, "training_type", None) != "simulation":  # which refuses this
                check_silos(args, self.rounds_done)
            self._restore()
        self._records = SiloRecords(self._recipe, self._settings)
        if is_server:
            _log.info(settings_line(self._recipe, served_alone=global_privacy()))

    def set_id(self, aggregator_id: int) -> None:
        """Set the aggregator's number, as FedML does before the first round; the tester's too.

        Raises:
            UserError: an instance that replaces what state and records depend on, or whose class
                does not call this one's constructor.
        """
        self._check_own()
        if not hasattr(self, "_records"):
            raise UserError(
                "server_aggregator",
                f"{type(self).__name__}: its __init__ does not call FedNNNNAggregator's: it must, "
                "with the model and the arguments",
            )
        super().set_id(aggregator_id)
        self._tester.set_id(aggregator_id)

    def _check_own(self) -> None:
        refuse_replaced(self, FedNNNNAggregator, _KEPT, "state and records depend on it")

    @property
    def rounds_left(self) -> int:
        """How many of ``comm_round`` rounds are left."""
        return self._last_round - self.rounds_done

    def get_model_params(self) -> OrderedDict[str, Tensor]:
        """Return a copy of the served model, on the CPU."""
        return whole_state(self.model, named_tensors(self.model), torch.device("cpu"))

    def set_model_params(self, model_parameters: Mapping[str, Tensor]) -> None:
        """Set the served model, and write the files that were asked for."""
        self.model.load_state_dict(model_parameters)
        server, state = self._server, self._state
        served = named_tensors(self.model)
        if self._hands_over():
            served = server.layout.state_dict(state.served)
        served |= server.memory_dict(state)
        self._files.write_state(served, standing(server, self._settings, self.rounds_done))
        if self.rounds_done > self._train.start_round:
            self._files.write_model(self.evaluation_state_dict(), self.rounds_done)
        if not self._is_tested():
            self._records.say()

    def evaluation_state_dict(self) -> OrderedDict[str, Tensor]:
        """Return a copy of the evaluation model; before the first aggregation the served one.

        Under FedML's global differential privacy it is the served model, with its noise: the
        average itself does not leave.
        """
        if self.rounds_done == self._train.start_round or global_privacy():
            return self.get_model_params()
        return whole_state(self.model, self._server.layout.state_dict(self._state.evaluation))

    def on_before_aggregation(
        self, raw_client_model_or_grad_list: Sequence[ClientModel]
    ) -> tuple[list[ClientModel], list[int]]:
        """Apply FedML's clipping, attacks and defences to copies of the client models.

        Raises:
            UserError: more than ``max_client_failures`` models with missing or unknown entries,
                or other shapes.
            RunError: fewer finite models than the defence needs.
        """
        self._records.clients_came()
        device = getattr(self.args, "device", None)
        if isinstance(device, torch.device):  # to which FedML moves the clients' models
            self.model.to(device)
        return self._clients.receive(self.rounds_done + 1, raw_client_model_or_grad_list)

    @torch.no_grad()
    def aggregate(
        self, raw_client_model_or_grad_list: Sequence[ClientModel]
    ) -> OrderedDict[str, Tensor]:
        """Return the next served model, of (number of samples, model) of the clients.

        In any order the result has the same bits. The models are only read, and have passed
        :meth:`on_before_aggregation`; one that is not finite is left out.

        Raises:
            UserError: more than ``max_client_failures`` models or numbers that cannot be added.
            RunError: no model could be averaged, or the served or the evaluation model overflowed;
                the federation is as it was before.
        """
        server, train = self._server, self._train
        memory = server.memory_dict(self._state)
        device = next(self.model.parameters()).device
        before = server.restore(named_tensors(self.model) | memory, device)
        assert before is not None
        part = ClientSum(server.layout, before.served, train.max_client_norm)
        uniform = train.client_weighting == "uniform"
        self._clients.add_to(part, raw_client_model_or_grad_list, uniform=uniform)
        seed = self._recipe.common_args.random_seed
        update, self._state, move = server.close_round(self.rounds_done + 1, before, part, seed)
        if move.degenerate:
            _log.warning("round %d: N is near 0: the served model stays", self.rounds_done + 1)
        self.rounds_done += 1
        evaluated = "served" if global_privacy() else server.rule.evaluated
        self._clients.begin(self.rounds_done + 1)
        self._records.aggregated(self.rounds_done, update, move, evaluated)
        handed = self._state.evaluation if self._hands_over() else self._state.served
        return whole_state(self.model, server.layout.state_dict(handed), torch.device("cpu"))

    def on_after_aggregation(
        self, aggregated_model_or_grad: Mapping[str, Tensor]
    ) -> OrderedDict[str, Tensor]:
        """Add FedML's global noise, where it is enabled, to the floating point entries."""
        if not global_privacy():
            return OrderedDict(aggregated_model_or_grad)
        return with_noise(self.model, aggregated_model_or_grad, local=False)

    def test(self, test_data: Any, device: Any, args: Any) -> Any:
        """Test the evaluation model as FedML tests its own, and report it the same way."""
        with self._numerics(device):
            found = self._tester.test(self.evaluation_state_dict(), test_data, device, args)
        self._records.tested(self._tester.evaluation(found))
        self._records.say()
        return found

    def test_all(
        self, train_data_local_dict: Any, test_data_local_dict: Any, device: Any, args: Any
    ) -> Any:
        """Let a custom tester test on the clients' data; FedML's does not."""
        local = train_data_local_dict, test_data_local_dict
        with self._numerics(device):
            return self._tester.test_all(self.evaluation_state_dict(), *local, device, args)

    def _numerics(self, device: Any) -> AbstractContextManager[None]:
        return numerics(self._train.precision, torch.device(device))

    def _hands_over(self) -> bool:
        """Tell whether the evaluation model is handed over in the place of the served one."""
        return not self.rounds_left and not global_privacy()

    def _is_tested(self) -> bool:
        """Tell whether FedML's server tests after this round, as it decides it."""
        number = self.rounds_done - self._train.start_round - 1
        every = getattr(self.args, "frequency_of_the_test", 0)
        return not self.rounds_left or (every > 0 and number % every == 0)

    def _restore(self) -> None:
        """Resume from the state file, if there is one."""
        found = self._files.read(self.rounds_done, self._recipe.rule.name)
        if found is None:
            return
        state, before = found
        where = f"server_state_path: {self.state_path}"
        check_continued(before, standing(self._server, self._settings, self.rounds_done), where)
        own = named_tensors(self.model)
        state = {name: t.to(own[name].dtype) if name in own else t for name, t in state.items()}
        self._state = restored(self._server, state, where)
        served = self._server.layout.state_dict(self._state.served)
        self.model.load_state_dict(whole_state(self.model, served))
