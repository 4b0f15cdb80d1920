"""Local training: what a client does with the served model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Precision = Literal["fp32", "tf32", "bf16", "fp64"]


@dataclass(frozen=True)
class LocalSGD:
    r"""Stochastic gradient descent without momentum (paper, sec. 5.1; algorithm ``ClientsUpdate``).

    .. math:: w ← w - η \left( ∇ℓ(w; b) + λ w + μ (w - w_t) \right)

    over ``epochs`` passes of mini-batches ``b`` of ``batch_size``, the last one of a pass as short
    as it comes. The gradient of the proximal term ``μ/2 ‖w - w_t‖²`` is FedProx's (eq. 9).

    Attributes:
        epochs: passes over the client's data.
        batch_size: B.
        learning_rate: η.
        weight_decay: λ, on every trainable parameter.
        prox_mu: μ, 0 for every method but FedProx.
        precision: ``fp32``; ``tf32`` the same with TF32 products on a GPU; ``bf16`` computes
            products in bfloat16 with weights in float32; ``fp64`` for comparisons.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    weight_decay: float = 0.0
    prox_mu: float = 0.0
    precision: Precision = "fp32"

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of weights, updates and norms."""
        return torch.float64 if self.precision == "fp64" else torch.float32

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """Return the context that forward passes run in."""
        if self.precision == "bf16":
            return torch.autocast(device.type, dtype=torch.bfloat16)
        return nullcontext()

    def train(self, model: nn.Module, epochs: Iterable[Iterable[tuple[Tensor, Tensor]]]) -> int:
        """Train ``model`` in place on cross-entropy, from the weights that it has.

        Args:
            model: in the dtype and on the device of the batches.
            epochs: for each epoch its batches (inputs, int64 labels).

        Returns:
            The number of steps.
        """
        model.train()
        parameters = [p for p in model.parameters() if p.requires_grad]
        anchors = [p.detach().clone() for p in parameters] if self.prox_mu else []
        steps = 0
        for batches in epochs:
            for inputs, labels in batches:
                with self.autocast(inputs.device):
                    loss = F.cross_entropy(model(inputs), labels)
                gradients: tuple[Tensor | None, ...] = torch.autograd.grad(
                    loss, parameters, allow_unused=True
                )
                self.descend(parameters, gradients, anchors)
                steps += 1
        return steps

    @torch.no_grad()
    def descend(
        self,
        parameters: Sequence[Tensor],
        gradients: Sequence[Tensor | None],
        anchors: Sequence[Tensor],
    ) -> None:
        """Take one step in place.

        Args:
            parameters: ``w``.
            gradients: ``∇ℓ``; None, of a parameter that the loss does not reach, leaves it alone.
            anchors: ``w_t``, of shapes that broadcast; not looked at where ``prox_mu`` is 0.
        """
        for index, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
            if gradient is None:
                continue
            # Not in place: autograd may give two parameters one tensor, or one that is expanded.
            step = gradient
            if self.weight_decay:
                step = step.add(parameter, alpha=self.weight_decay)
            if self.prox_mu:
                step = step.add(parameter - anchors[index], alpha=self.prox_mu)
            parameter.add_(step, alpha=-self.learning_rate)
