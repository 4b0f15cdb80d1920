"""Local training: what a client does with the served model."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fednnnn_plugin.client.replica import Replica

Precision = Literal["fp32", "tf32", "bf16", "fp64"]


def go_on() -> None:
    """Is called before each step: another function may raise, which ends the training."""


@dataclass(frozen=True)
class LocalSGD:
    r"""Stochastic gradient descent without momentum (paper, sec. 5.1; algorithm ``ClientsUpdate``).

    .. math:: w ← w - η \left( ∇ℓ(w; b) + λ w + μ (w - w_t) \right)

    over passes of mini-batches ``b``, the last one of a pass as short as it comes. The gradient of
    the proximal term ``μ/2 ‖w - w_t‖²`` is FedProx's (eq. 7). Precision ``tf32`` is ``fp32`` with
    TF32 products on a GPU; ``bf16`` computes products in bfloat16 with weights in float32.
    """

    epochs: int
    batch_size: int  # B; -1 is all of a client's data
    learning_rate: float  # η
    weight_decay: float = 0.0  # λ, on every trainable parameter
    prox_mu: float = 0.0  # μ
    precision: Precision = "fp32"

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of weights, updates and norms."""
        return torch.float64 if self.precision == "fp64" else torch.float32

    @property
    def rate(self) -> float:
        """η (λ + μ), by which a step comes nearer to the anchor."""
        return self.learning_rate * (self.weight_decay + self.prox_mu)

    def anchor(self, served: Tensor) -> Tensor:
        r"""Return ``c``: decay and proximal term together are a step towards one point.

        .. math:: λ w + μ (w - w_t) = (λ + μ) (w - c),  c = w_t μ / (λ + μ)
        """
        if not self.prox_mu:
            return served.new_zeros(()).expand_as(served)
        return served * (self.prox_mu / (self.weight_decay + self.prox_mu))

    def batch_of(self, samples: int) -> int:
        """Return the size of the batches that so many samples are cut into."""
        return max(samples, 1) if self.batch_size == -1 else self.batch_size

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """Return the context that forward passes run in."""
        if self.precision == "bf16":
            return torch.autocast(device.type, dtype=torch.bfloat16)
        return nullcontext()

    def train(
        self,
        replica: Replica,
        epochs: Iterable[Iterable[tuple[Tensor, Tensor]]],
        before_step: Callable[[], None] = go_on,
    ) -> None:
        """Train a replica in place on cross-entropy, by each epoch's batches (inputs, labels).

        A parameter that a step's loss does not reach stays as it is in that step.
        """
        replica.model.train()
        anchors = replica.layout.views(self.anchor(replica.vector)).values()
        for batches in epochs:
            for inputs, labels in batches:
                before_step()
                with self.autocast(inputs.device):
                    loss = F.cross_entropy(replica.model(inputs), labels)
                gradients = torch.autograd.grad(loss, replica.trained, allow_unused=True)
                trio = zip(replica.trained, anchors, gradients, strict=True)
                reached = [given for given in trio if given[2] is not None]
                if reached:
                    self._descend(*zip(*reached, strict=True))

    @torch.no_grad()
    def _descend(
        self,
        weights: tuple[Tensor, ...],
        anchors: tuple[Tensor, ...],
        gradients: tuple[Tensor, ...],
    ) -> None:
        if self.rate:
            torch._foreach_lerp_(weights, anchors, self.rate)
        torch._foreach_add_(weights, gradients, alpha=-self.learning_rate)
