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
from fednnnn_plugin.server.adaptive import FedAdam, FedExP, FedYogi
from fednnnn_plugin.server.norms import by_module, squared_norm
from fednnnn_plugin.server.optimizers import FedNNNN, Momentum, NormNorm

RuleOptimizer = FedNNNN | NormNorm | Momentum | FedExP | FedAdam | FedYogi

# With a dot in front, which no name in a module has: none is overwritten.
MOMENTUM = ".momentum."
SECOND_MOMENT = ".second_moment."
_MOMENTS: dict[str, type[FedAdam] | type[FedYogi]] = {"FedAdam": FedAdam, "FedYogi": FedYogi}
_STATES = {"momentum_buffer": MOMENTUM, "second_moment": SECOND_MOMENT}


@dataclass(frozen=True)
class ServerRule:
    """A method and its hyperparameters: how the server steps, and what is evaluated.

    ``FedNNNN``, ``NormNorm`` and ``Momentum`` are the paper's; ``PaperFedAvg`` and
    ``PaperFedProx``, its baselines, take the average as it is. ``FedExP``, ``FedAdam`` and
    ``FedYogi`` are comparators (:mod:`.adaptive`); what is None takes their defaults, but for
    ``server_lr``, η, which has none.
    """

    method: str
    beta: float | None = None
    gamma: float | None = None
    server_lr: float | None = None
    server_beta1: float | None = None
    server_beta2: float | None = None
    server_tau: float | None = None
    fedexp_epsilon: float | None = None

    def optimizer(self, parameters: Collection[Parameter]) -> RuleOptimizer:
        """Make the rule's server optimizer.

        Raises:
            UserError: an unknown method, a value out of range, ``server_lr`` is missing.
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
            case "FedExP":
                return FedExP(parameters, **_given(epsilon=self.fedexp_epsilon))
            case "FedAdam" | "FedYogi":
                return _MOMENTS[self.method](parameters, **self._rates())
        raise UserError(
            f"federated_optimizer: {self.method!r}: must be FedNNNN, NormNorm, Momentum, "
            "PaperFedAvg, PaperFedProx, FedExP, FedAdam or FedYogi"
        )

    @staticmethod
    def step(optimizer: RuleOptimizer, update: Update) -> None:
        """Step by a round's update, of which the gradients hold ``-S``."""
        match optimizer:
            case FedNNNN() | NormNorm():
                optimizer.step(mean_client_norm=update.mean_client_norm)
            case FedExP():
                optimizer.step(mean_client_square=update.mean_client_square)
            case _:
                optimizer.step()

    def evaluation(self, before: Tensor, after: Tensor, mean_update: Tensor) -> Tensor:
        """Return a parameter of the evaluation model: the one that the method's source tests.

        - FedAdam, FedYogi: ``w_{t+1}``; Reddi et al. know one server model.
        - FedExP: ``(w_t + w_{t+1}) / 2``, as its iterates swing; w_0 counts as one of them (the
          authors' code takes w_1 alone in the first round).
        - the paper's rules and baselines: the average ``w_t + S``.

        Args:
            before: ``w_t``.
            after: ``w_{t+1}``; the result shares no memory with it.
            mean_update: ``S``.
        """
        match self.method:
            case "FedAdam" | "FedYogi":
                return after.clone()
            case "FedExP":
                return before / 2 + after / 2
        return (before + mean_update).to(before.dtype)

    def _rates(self) -> dict[str, float]:
        if self.server_lr is None:
            raise UserError(f"{self.method}: server_lr is missing: set train_args.server_lr")
        return _given(
            lr=self.server_lr,
            beta1=self.server_beta1,
            beta2=self.server_beta2,
            tau=self.server_tau,
        )


def _given(**values: float | None) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class ServerMove:
    """How far the served model moved in a round: ``‖w_{t+1} - w_t‖₂``, whole and by module."""

    server_update_norm: float
    layers: dict[str, float]
    degenerate: bool


class Server:
    r"""Keeps the *served* model, which starts each round, and the *evaluation* model.

    With ``S``, ``N``, ``E`` of a round's :class:`Update`, the served model follows the rule
    (:mod:`.optimizers`, :mod:`.adaptive`); the evaluation model is, for the paper's rules, the
    plain average ``w_t + S`` (:meth:`ServerRule.evaluation`). Buffers are the update's in both.

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
        self._rule = rule
        self._optimizer = rule.optimizer(self._parameters.values())

    @torch.no_grad()
    def apply(self, update: Update) -> ServerMove:
        """Move both models by a round's update."""
        before = {name: parameter.clone() for name, parameter in self._parameters.items()}
        for name, parameter in self._parameters.items():
            parameter.grad = -update.mean_update[name].to(parameter.dtype)
        self._rule.step(self._optimizer, update)
        self.evaluation = {
            name: self._rule.evaluation(before[name], tensor, update.mean_update[name])
            if name in before
            else update.buffers[name]
            for name, tensor in self.served.items()
        }
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
        """Return the served model, and the rule's state.

        ``d``, or ``m``, is prefixed with ``.momentum.``, ``v`` with ``.second_moment.``.
        """
        state = dict(self.served)
        for name, parameter in self._parameters.items():
            kept = self._optimizer.state.get(parameter, {})
            state |= {_STATES[key] + name: tensor for key, tensor in kept.items()}
        return state

    def takes(self, state: Mapping[str, Tensor]) -> bool:
        """Tell whether a state has this model's names, shapes and dtypes."""
        like = self.served | {
            prefix + name: self.served[name]
            for prefix in _STATES.values()
            for name in self._parameters
        }
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
            for key, prefix in _STATES.items():
                if prefix + name in state:
                    buffer = state[prefix + name].to(parameter, copy=True)
                    self._optimizer.state[parameter][key] = buffer


def rule_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what of :meth:`Server.state_dict` is the rule's own, not the served model."""
    prefixes = tuple(_STATES.values())
    return {name: tensor for name, tensor in state.items() if name.startswith(prefixes)}
