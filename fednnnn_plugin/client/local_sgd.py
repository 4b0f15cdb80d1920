"""Local training: what a client does with the served model."""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from fractions import Fraction

import torch
from torch import Tensor

from fednnnn_plugin.client.correction import Correction, step_gradients
from fednnnn_plugin.client.loss import CROSS_ENTROPY, Loss
from fednnnn_plugin.client.replica import Replica
from fednnnn_plugin.processes.numerics import Precision

#: Returns η_r, the learning rate of round r, from 1.
Rates = Callable[[int], float]
#: Makes an optimizer of parameters and ``lr``.
MakeOptimizer = Callable[..., torch.optim.Optimizer]
#: Moves a replica by the gradients of its trained parameters; None for one without a gradient.
Descent = Callable[[Sequence[Tensor | None]], None]
Tensors = tuple[Tensor, ...]


def uninterrupted() -> None:
    """Do nothing before a step; another function may raise instead, which ends the training."""


@dataclass(frozen=True)
class LocalSGD:
    r"""Stochastic gradient descent (paper, sec. 5.1 and algorithm 2).

    .. math:: w ← w - η_r \left( ∇ℓ(w; b) + λ w + μ (w - w_t) + h \right)

    in round r, over passes of mini-batches ``b``, the last one of a pass as short as it comes; the
    last pass ends after T steps, see :meth:`steps`. The
    gradient of the proximal term ``μ/2 ‖w - w_t‖²`` is FedProx's (eq. 7), the correction ``h`` a
    client method's, which may also give a gradient instead of ``∇ℓ``. Precision ``tf32`` is
    ``fp32`` with TF32 products on a GPU; ``bf16`` computes products in bfloat16 with weights in
    float32. What a loss keeps from step to step begins anew with each client and round.

    Where there is an ``optimizer``, one is made anew for each client and round. It gets
    ``∇ℓ + μ (w - w_t) + h``, first scaled to at most ``max_grad_norm``; the decay λ is its own.
    """

    epochs: float | None  # e; None with local_steps
    batch_size: int  # B; -1 is all of a client's data
    learning_rate: float  # η
    weight_decay: float = 0.0  # λ, on every trainable parameter
    prox_mu: float = 0.0  # μ
    precision: Precision = "fp32"
    schedule: Rates | None = None  # η_r; None is η in all rounds
    optimizer: MakeOptimizer | None = None
    max_grad_norm: float | None = None  # with an optimizer
    loss: Loss = CROSS_ENTROPY
    local_steps: int | None = None  # T, of each client; None with epochs

    def in_round(self, number: int) -> "LocalSGD":
        """Return the training of a round, from 1."""
        if self.schedule is None:
            return self
        return replace(self, learning_rate=self.schedule(number))

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

    @property
    def has_whole_epochs(self) -> bool:
        """Whether each pass is over all batches of a client."""
        return self.epochs is not None and self.epochs == int(self.epochs)

    def steps(self, batches: int) -> int:
        """Return T, a client's steps in a round, whose data are so many batches.

        ``T = ⌈e · batches⌉`` by the decimal that the epochs e are written as, or ``local_steps``.
        """
        if self.epochs is None:
            assert self.local_steps is not None
            return self.local_steps
        return math.ceil(Fraction(repr(self.epochs)) * batches)

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
        before_step: Callable[[], None] = uninterrupted,
        correction: Correction | None = None,
    ) -> None:
        """Train a replica in place by each epoch's batches (inputs, targets).

        The correction is that of a group of one. A parameter that a step's loss does not reach
        stays as it is in that step; with a correction, which is of all steps, it has the gradient
        0.
        """
        replica.model.train()
        step = self.stepper(replica, correction)
        for batches in epochs:
            for inputs, targets in batches:
                before_step()
                step(inputs, targets)

    def stepper(
        self, replica: Replica, correction: Correction | None = None
    ) -> Callable[[Tensor, Tensor], None]:
        """Return what makes a step of a replica, which has ``w_t`` now, by a batch."""
        loss_of = self.loss.fresh(replica.vector.device)
        added = None if correction is None or correction.added is None else correction.added[0]
        if self.optimizer is None:
            descend = self._steps(replica, self.anchor(replica.vector), added)
        else:
            made = self.optimizer(replica.trained, lr=self.learning_rate)
            descend = self._steps_of(made, replica, added)

        def gradients(inputs: Tensor, targets: Tensor) -> Tensors:
            with self.autocast(inputs.device):
                loss = loss_of(replica.model(inputs), targets)
            return torch.autograd.grad(
                loss,
                replica.trained,
                allow_unused=True,
                materialize_grads=correction is not None,
            )

        own = None if correction is None else correction.gradient
        number = torch.zeros(1, 1, dtype=torch.int64, device=replica.vector.device)

        def buffers() -> Iterable[Tensor]:
            return replica.state.buffers.values()

        def step(inputs: Tensor, targets: Tensor) -> None:
            if own is None:
                descend(gradients(inputs, targets))
                return
            weights = replica.vector.clone().unsqueeze(0)

            def gradient_at(points: Tensor) -> Tensor:
                replica.vector.copy_(points[0])
                found = gradients(inputs, targets)
                replica.vector.copy_(weights[0])
                return torch.cat([part.to_dense().flatten() for part in found]).unsqueeze(0)

            at = step_gradients(gradient_at, buffers)
            descend([*replica.layout.views(own(weights, at, number)[0]).values()])
            number.add_(1)

        return step

    def _steps(self, replica: Replica, anchor: Tensor, correction: Tensor | None) -> Descent:
        constants = [anchor, *([] if correction is None else [correction])]
        columns = [replica.trained, *(replica.layout.views(x).values() for x in constants)]

        @torch.no_grad()
        def descend(gradients: Sequence[Tensor | None]) -> None:
            rows = zip(gradients, *columns, strict=True)
            if reached := [row for row in rows if row[0] is not None]:
                self.descend(*zip(*reached, strict=True))

        return descend

    def descend(
        self, gradients: Tensors, weights: Tensors, anchors: Tensors, corrections: Tensors = ()
    ) -> None:
        """Make a plain step in place: the parts of a client's model, or a group's ``[m, d]``.

        The anchors are ``c``, the corrections ``h``, of which there may be none.
        """
        if self.rate:
            torch._foreach_lerp_(weights, anchors, self.rate)
        torch._foreach_add_(weights, gradients, alpha=-self.learning_rate)
        if corrections:
            torch._foreach_add_(weights, corrections, alpha=-self.learning_rate)

    def _steps_of(
        self, optimizer: torch.optim.Optimizer, replica: Replica, correction: Tensor | None
    ) -> Descent:
        served = replica.vector.clone()
        constant = torch.zeros_like(served) if correction is None else correction

        @torch.no_grad()
        def descend(gradients: Sequence[Tensor | None]) -> None:
            more = constant
            if self.prox_mu:
                more = self.prox_mu * (replica.vector - served) + constant
            parts = replica.layout.views(more).values()
            for weights, gradient, part in zip(replica.trained, gradients, parts, strict=True):
                weights.grad = None if gradient is None else part + gradient
            if self.max_grad_norm is not None:
                torch.nn.utils.clip_grad_norm_(replica.trained, self.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()

        return descend
