"""Local training: what a client does with the served model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fednnnn_plugin.client.replica import Replica

Precision = Literal["fp32", "tf32", "bf16", "fp64"]


@dataclass(frozen=True)
class LocalSGD:
    r"""Stochastic gradient descent without momentum (paper, sec. 5.1; algorithm ``ClientsUpdate``).

    .. math:: w ← w - η \left( ∇ℓ(w; b) + λ w + μ (w - w_t) \right)

    over ``epochs`` passes of mini-batches ``b`` of ``batch_size``, the last one of a pass as short
    as it comes. The gradient of the proximal term ``μ/2 ‖w - w_t‖²`` is FedProx's (eq. 9).

    Attributes:
        epochs: passes over the client's data.
        batch_size: B; -1 is all of a client's data.
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

    def batch_of(self, samples: int) -> int:
        """Return the size of the batches that so many samples are cut into."""
        return max(samples, 1) if self.batch_size == -1 else self.batch_size

    def train(self, replica: Replica, epochs: Iterable[Iterable[tuple[Tensor, Tensor]]]) -> int:
        """Train a replica in place on cross-entropy, from the weights that it has.

        A parameter that a step's loss does not reach stays as it is in that step.

        Args:
            replica: on the device of the batches.
            epochs: for each epoch its batches (inputs, int64 labels).

        Returns:
            The number of steps.
        """
        replica.model.train()
        anchor = self.anchor(replica.vector)
        steps = 0
        for batches in epochs:
            for inputs, labels in batches:
                with self.autocast(inputs.device):
                    loss = F.cross_entropy(replica.model(inputs), labels)
                gradients: tuple[Tensor | None, ...] = torch.autograd.grad(
                    loss, replica.trained, allow_unused=True
                )
                self._descend(replica, gradients, anchor)
                steps += 1
        return steps

    def anchor(self, served: Tensor) -> Tensor:
        r"""Return ``c``: decay and proximal term together are a step towards one point.

        .. math:: λ w + μ (w - w_t) = (λ + μ) (w - c),  c = w_t μ / (λ + μ)
        """
        if not self.prox_mu:
            return served.new_zeros(())
        return served * (self.prox_mu / (self.weight_decay + self.prox_mu))

    @property
    def rate(self) -> float:
        """η (λ + μ), by which a step comes nearer to the anchor."""
        return self.learning_rate * (self.weight_decay + self.prox_mu)

    @torch.no_grad()
    def _descend(
        self, replica: Replica, gradients: Sequence[Tensor | None], anchor: Tensor
    ) -> None:
        """Take a step; a gradient is None where the loss does not reach the parameter."""
        reached, given, stay = [], [], []
        for view, gradient in zip(replica.views, gradients, strict=True):
            if gradient is None:
                stay.append((view, view.clone()))
            else:
                reached.append(view)
                given.append(gradient)
        if self.rate:
            replica.vector.lerp_(anchor, self.rate)
        for view, before in stay:
            view.copy_(before)
        torch._foreach_add_(reached, given, alpha=-self.learning_rate)
