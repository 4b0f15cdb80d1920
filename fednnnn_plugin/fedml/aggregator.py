"""FedNNNN and its relatives as the server aggregator of a FedML cross-silo federation."""

import copy
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import safetensors.torch
import torch
from fedml.core.alg_frame.server_aggregator import ServerAggregator
from fedml.ml.aggregator.aggregator_creator import create_server_aggregator
from torch import Tensor, nn

from fednnnn_plugin.engine.files import write_atomically
from fednnnn_plugin.engine.state import State, aliases, named_tensors, trainable_names
from fednnnn_plugin.errors import RunError, UserError
from fednnnn_plugin.fedml.defences import ClientModel, before_aggregation, check_defences
from fednnnn_plugin.fedml.patches import runner
from fednnnn_plugin.fedml.privacy import check_privacy, global_privacy, with_global_noise
from fednnnn_plugin.fedml.server_state import Standing, read_state, write_state
from fednnnn_plugin.fedml.settings import ServerSettings, server_settings
from fednnnn_plugin.server.accumulator import UpdateAccumulator
from fednnnn_plugin.server.server import MOMENTUM, Server

_log = logging.getLogger(__name__)

_SECURE = ("LSA", "SA")


class FedNNNNAggregator(ServerAggregator):  # type: ignore[misc]
    r"""A FedML ``ServerAggregator`` with the paper's server rule (eqs. 8 and 11 to 14).

    ``model`` is the *served* model: FedML sends it to the clients. Each round makes of the
    clients' models the next served model, by the rule, and the *evaluation* model
    :math:`w_t + S`, their plain average, which :meth:`test` reports. ``w_t`` is what the model
    holds: what the last :meth:`set_model_params` set, noise included. Updates, momentum and the
    rule are in float32 at least; results have the model's dtypes, on its device.

    Of ``args`` it reads ``beta``, ``gamma`` (no default), ``client_weighting``,
    ``max_client_norm``, ``start_round``, ``server_state_path`` and ``save_path``.

    Args:
        model: ``w_0``.
        args: FedML's arguments.
        method: one of our methods; None takes ``args.federated_optimizer`` if that is one, else
            FedNNNN.

    Raises:
        UserError: a setting that is missing or out of range; a FedML setting that cannot work with
            this aggregation; a server state that is not of ``start_round``.

    Example:
        >>> FedMLRunner(args, device, dataset, model,
        ...             server_aggregator=FedNNNNAggregator(model, args))  # doctest: +SKIP
    """

    def __init__(self, model: nn.Module, args: Any, method: str | None = None) -> None:
        self._settings = server_settings(args, method)
        _check(model, args, self._settings)
        # FedML's own tester knows its tasks; it gets a model of its own, and goes first: both
        # constructors start FedML's privacy and defences anew.
        self._tester = create_server_aggregator(copy.deepcopy(model), args)
        super().__init__(model, args)
        self._round = self._settings.start_round
        self._momentum: dict[str, Tensor] = {}
        self._evaluation: OrderedDict[str, Tensor] | None = None
        self._restore()
        runner.apply()

    def get_model_params(self) -> OrderedDict[str, Tensor]:
        """Return a copy of the served model."""
        return self._whole(named_tensors(self.model))

    def set_model_params(self, model_parameters: Mapping[str, Tensor]) -> None:
        """Set the served model; after an aggregation, write the files that were asked for."""
        self.model.load_state_dict(model_parameters)
        if self._round > self._settings.start_round:
            self._write()

    def evaluation_state_dict(self) -> OrderedDict[str, Tensor]:
        """Return a copy of the evaluation model; before the first aggregation the served one.

        Under FedML's global differential privacy it is the served model, with its noise: the
        average itself does not leave.
        """
        if self._evaluation is None:
            return self.get_model_params()
        return OrderedDict((name, tensor.clone()) for name, tensor in self._evaluation.items())

    def on_before_aggregation(
        self, raw_client_model_or_grad_list: Sequence[ClientModel]
    ) -> tuple[list[ClientModel], list[int]]:
        """Apply FedML's clipping, attacks and defences to copies of the client models."""
        for position, (_, state) in enumerate(raw_client_model_or_grad_list):
            self._check_client(position, state)
        return before_aggregation(raw_client_model_or_grad_list, self.get_model_params())

    @torch.no_grad()
    def aggregate(
        self, raw_client_model_or_grad_list: Sequence[ClientModel]
    ) -> OrderedDict[str, Tensor]:
        """Return the next served model.

        Args:
            raw_client_model_or_grad_list: (number of samples, model) of every client, in any
                order: the result has the same bits. They are only read. A model that is not
                finite is left out.

        Raises:
            UserError: a model with missing or unknown entries, or other shapes.
            RunError: no model was finite.
        """
        w_t = {name: _working(tensor) for name, tensor in named_tensors(self.model).items()}
        trainable = trainable_names(self.model)
        part = UpdateAccumulator(w_t, trainable, self._settings.max_client_norm)
        for position, (samples, state) in enumerate(raw_client_model_or_grad_list):
            self._add(part, position, samples, state)
        if not part.clients:
            raise RunError(
                f"round {self._round + 1}: no client update to average: all "
                f"{len(raw_client_model_or_grad_list)} were rejected"
            )
        server = Server(self._settings.rule, w_t, trainable)
        server.load_state_dict(w_t | self._momentum)
        if server.apply(part.finish()).degenerate:
            _log.warning("round %d: N is near 0: the served model stays", self._round + 1)
        self._momentum = {
            name: tensor
            for name, tensor in server.state_dict().items()
            if name.startswith(MOMENTUM)
        }
        self._round += 1
        self._evaluation = None if global_privacy() else self._whole(server.evaluation)
        return self._whole(server.served)

    def on_after_aggregation(
        self, aggregated_model_or_grad: Mapping[str, Tensor]
    ) -> OrderedDict[str, Tensor]:
        """Add FedML's global noise, where it is enabled, to the floating point entries."""
        if not global_privacy():
            return OrderedDict(aggregated_model_or_grad)
        tied = aliases(self.model)
        once = {name: t for name, t in aggregated_model_or_grad.items() if name not in tied}
        return self._whole(with_global_noise(once, self.model))

    def test(self, test_data: Any, device: Any, args: Any) -> Any:
        """Test the evaluation model as FedML tests its own, and report it the same way."""
        self._tester.set_model_params(self.evaluation_state_dict())
        return self._tester.test(test_data, device, args)

    def _check_client(self, position: int, state: Any) -> None:
        """Refuse a model that has other entries than ours, or tied ones that differ."""
        where = f"round {self._round + 1}: client {position} of this round"
        if not isinstance(state, Mapping):
            raise UserError(f"{where}: {type(state).__name__}: must be a model's state")
        names = self.model.state_dict().keys()
        if state.keys() != names:
            missing, extra = sorted(names - state.keys()), sorted(state.keys() - names)
            raise UserError(f"{where}: missing entries {missing}, unknown entries {extra}")
        for name, tensor in state.items():
            if not isinstance(tensor, Tensor):
                raise UserError(f"{where}: {name}: {type(tensor).__name__}: must be a tensor")
        for name, first in aliases(self.model).items():
            one, other = state[name], state[first].to(state[name].device)
            if not torch.equal(one.nan_to_num(), other.nan_to_num()):
                raise UserError(f"{where}: {name}: differs from {first}, to which it is tied")

    def _add(self, part: UpdateAccumulator, position: int, samples: Any, state: State) -> None:
        self._check_client(position, state)
        weight = 1.0 if self._settings.weighting == "uniform" else samples
        if weight == 0:  # such as FoolsGold gives
            return
        once = {name: state[name] for name in named_tensors(self.model)}
        try:
            accepted = part.add(once, weight)
        except UserError as error:
            raise UserError(
                f"round {self._round + 1}: client {position} of this round: {error}"
            ) from None
        if not accepted:
            _log.warning(
                "round %d: client %d of this round: update rejected: not finite",
                self._round + 1,
                position,
            )

    def _whole(self, state: State) -> OrderedDict[str, Tensor]:
        """Return a copy under all names, tied ones too, in the model's dtypes."""
        tied = aliases(self.model)
        return OrderedDict(
            (name, state[tied.get(name, name)].detach().to(tensor.dtype, copy=True))
            for name, tensor in self.model.state_dict().items()
        )

    def _restore(self) -> None:
        """Go on from the state file, if there is one."""
        settings = self._settings
        for file in (settings.state_path, settings.save_path):
            if file is not None:
                file.parent.mkdir(parents=True, exist_ok=True)
        if settings.state_path is None or not settings.state_path.exists():
            if settings.start_round:
                raise UserError(
                    f"train_args.start_round: {settings.start_round}: there is no state to start "
                    f"from at server_state_path: {settings.state_path}"
                )
            return
        state = read_state(settings.state_path, self._standing())
        self._momentum = {n: t for n, t in state.items() if n.startswith(MOMENTUM)}
        served = {n: t for n, t in state.items() if n not in self._momentum}
        own = {name: tensor.shape for name, tensor in named_tensors(self.model).items()}
        if {name: tensor.shape for name, tensor in served.items()} != own:
            raise UserError(
                f"server_state_path: {settings.state_path}: the state is of another model"
            )
        self.model.load_state_dict(self._whole(served))

    def _write(self) -> None:
        if self._settings.save_path is not None:
            content = {n: t.cpu().contiguous() for n, t in self.evaluation_state_dict().items()}
            write_atomically(self._settings.save_path, safetensors.torch.save(content))
        if self._settings.state_path is not None:
            state = named_tensors(self.model) | self._momentum
            write_state(self._settings.state_path, state, self._standing())

    def _standing(self) -> Standing:
        return Standing(self._round, self._settings.rule.method)


def _check(model: Any, args: Any, settings: ServerSettings) -> None:
    if not isinstance(model, nn.Module):
        raise UserError(f"model: {type(model).__name__}: must be a torch.nn.Module")
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            raise UserError(f"model: {name}: {type(value).__name__}: must be a tensor")
    if not trainable_names(model):
        raise UserError("model: it has no trainable parameters")
    optimizer = getattr(args, "federated_optimizer", None)
    if optimizer in _SECURE:
        raise UserError(
            f"federated_optimizer: {optimizer}: norms cannot be taken of models that the server "
            "does not see; must be FedAvg, or one of our methods"
        )
    check_privacy(args)
    check_defences(args, settings.weighting)


def _working(tensor: Tensor) -> Tensor:
    """Return a tensor in the precision that the rule is applied in."""
    if not tensor.is_floating_point():
        return tensor
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
