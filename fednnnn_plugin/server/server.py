"""The server of one federation: two models, one rule."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Parameter

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.server.accumulator import Update
from fednnnn_plugin.server.norms import by_module, squared_norm
from fednnnn_plugin.server.optimizers import FedNNNN, Momentum, NormNorm, ServerOptimizer

MOMENTUM = ".momentum."  # with a dot in front, which no name in a module has: none is overwritten


@dataclass(frozen=True)
class ServerRule:
    """A method and its hyperparameters.

    ``FedNNNN``, ``NormNorm`` and ``Momentum`` are the paper's; ``PaperFedAvg`` and
    ``PaperFedProx``, its baselines, take the average as it is.
    """

    method: str
    beta: float | None = None
    gamma: float | None = None

    def optimizer(self, parameters: Collection[Parameter]) -> ServerOptimizer:
        """Make the rule's server optimizer.

        Raises:
            UserError: an unknown method, a value out of range.
        """
        match self.method:
            case "FedNNNN":
                return FedNNNN(parameters, beta=self.beta, gamma=self.gamma)
            case "NormNorm":
                return NormNorm(parameters, beta=self.beta)
            case "Momentum":
                return Momentum(parameters, gamma=self.gamma)
            case "PaperFedAvg" | "PaperFedProx":
                return Momentum(parameters, gamma=0.0)
        raise UserError(
            f"federated_optimizer: {self.method!r}: must be FedNNNN, NormNorm, Momentum, "
            "PaperFedAvg or PaperFedProx"
        )


@dataclass(frozen=True)
class ServerMove:
    """How far the served model moved in a round: ``‖w_{t+1} - w_t‖₂``, whole and by module."""

    server_update_norm: float
    layers: dict[str, float]
    degenerate: bool


class Server:
    r"""Keeps the *served* model, which starts each round, and the *evaluation* model.

    With ``S``, ``N``, ``E`` of a round's :class:`Update`, the evaluation model is the plain
    average ``w_t + S``; the served model follows the rule (:mod:`.optimizers`). Buffers are the
    update's in both.

    Args:
        rule: the method.
        state: ``w_0`` with its buffers; it is copied.
        trainable: the names that the rule moves.
    """

    def __init__(
        self, rule: ServerRule, state: Mapping[str, Tensor], trainable: Collection[str]
    ) -> None:
        self.served = {
            name: tensor.detach().clone(memory_format=torch.contiguous_format)
            for name, tensor in state.items()
        }
        self.evaluation = dict(self.served)
        self._parameters = {
            name: Parameter(self.served[name]) for name in self.served if name in set(trainable)
        }
        self._optimizer = rule.optimizer(self._parameters.values())

    @torch.no_grad()
    def apply(self, update: Update) -> ServerMove:
        """Move both models by a round's update."""
        before = {name: parameter.clone() for name, parameter in self._parameters.items()}
        self.evaluation = {
            name: (before[name] + update.mean_update[name]).to(before[name].dtype)
            if name in before
            else update.buffers[name]
            for name in self.served
        }
        for name, parameter in self._parameters.items():
            parameter.grad = -update.mean_update[name].to(parameter.dtype)
        if isinstance(self._optimizer, Momentum):
            self._optimizer.step()
        else:
            self._optimizer.step(mean_client_norm=update.mean_client_norm)
        for name, buffer in update.buffers.items():
            self.served[name].copy_(buffer)
        squares = {}
        for name, parameter in self._parameters.items():
            parameter.grad = None
            squares[name] = squared_norm(parameter - before[name])
        return ServerMove(
            math.sqrt(sum(squares.values())), by_module(squares), self._optimizer.degenerate
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Return the served model and ``d``, prefixed with ``.momentum.``."""
        state = dict(self.served)
        for name, parameter in self._parameters.items():
            buffer = self._optimizer.state.get(parameter, {}).get("momentum_buffer")
            if buffer is not None:
                state[MOMENTUM + name] = buffer
        return state

    def takes(self, state: Mapping[str, Tensor]) -> bool:
        """Tell whether a state has this model's names, shapes and dtypes."""
        like = self.served | {MOMENTUM + name: self.served[name] for name in self._parameters}
        return self.served.keys() <= state.keys() <= like.keys() and all(
            (tensor.shape, tensor.dtype) == (like[name].shape, like[name].dtype)
            for name, tensor in state.items()
        )

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`state_dict` gave."""
        for name, tensor in self.served.items():
            tensor.copy_(state[name])
        for name, parameter in self._parameters.items():
            self._optimizer.state.pop(parameter, None)
            if MOMENTUM + name in state:
                buffer = state[MOMENTUM + name].to(parameter, copy=True)
                self._optimizer.state[parameter]["momentum_buffer"] = buffer
