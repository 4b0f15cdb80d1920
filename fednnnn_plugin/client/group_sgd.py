"""Local training of several clients in one set of kernels."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass
from functools import cached_property, partial
from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from fednnnn_plugin.client.correction import Correction, step_gradients
from fednnnn_plugin.client.local_sgd import LocalSGD, uninterrupted
from fednnnn_plugin.client.loss import CROSS_ENTROPY, LOSSES, Loss
from fednnnn_plugin.client.replica import layout_of
from fednnnn_plugin.client.side_by_side import SideBySide
from fednnnn_plugin.client.step_graphs import StepGraphs
from fednnnn_plugin.seeds import isolated_generators
from fednnnn_plugin.server.layout import ModelState
from fednnnn_plugin.server.transfer import to_device

#: Clients that train together, or one alone; ranks and threads take these.
Group = tuple[int, ...]


#: Returns inputs of a round and a client, at a step from 0, augmented.
Augment = Callable[[Tensor, int, int, int], Tensor]
# Of outputs [n, m·c, …] and labels [m, n, …]: the sum of the clients' losses.
_Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class _Memory:
    """What steps read and write: the models of m clients, and a batch of each.

    ``positions`` and ``shares`` ``[m, B]`` are of the samples, the anchor ``[d]`` is all clients'.
    """

    models: ModelState
    anchor: Tensor
    positions: Tensor
    shares: Tensor


class Staged(NamedTuple):
    """What the steps of a group take, of which the copies to a GPU have begun.

    For each of S steps how many samples each client has in it, 0 where it has no more steps, on the
    CPU; the ``positions`` ``[S, m, B]`` of the samples, and the ``shares`` ``[S, m, B]`` of each in
    its batch's loss, 0 for what pads it; how many steps each has ``made`` before, ``[S, m]``, on
    the CPU.
    """

    lengths: list[list[int]]
    positions: Tensor
    shares: Tensor
    made: Tensor


_PAD = -1  # where a batch has no more samples


def _in_batches(order: Tensor, batch_size: int) -> Tensor:
    """Return positions ``[n]`` as batches ``[⌈n/B⌉, B]``, the last one padded."""
    steps = -(-len(order) // batch_size)
    return F.pad(order, (0, steps * batch_size - len(order)), value=_PAD).view(steps, batch_size)


@dataclass(eq=False, repr=False)
class GroupSGD:
    """:class:`LocalSGD` on clients side by side, the rows of one matrix ``[m, d]``.

    Each client keeps its own weights, buffers, batches, anchor and, of a user's loss, its own copy:
    the function is that of one client after another, in another order of additions. The rows fall
    in size, so that those that still have a batch are a shrinking prefix, and all of them take a
    step at once: an epoch takes as many steps as the largest client's. A user's loss is called once
    for each client and step.

    Memory for the widest group so far is held. ``inputs`` ``[n, …]`` and ``labels`` ``[n]`` are on
    the device; ``normalisation`` is of a batch's inputs, ``[m, B, …]``. ``graphs`` may launch the
    steps, but not those with a user's loss, a correction, an augmentation, ``seeds``, or a learning
    rate that changes from round to round.
    """

    sgd: LocalSGD
    model: InitVar[nn.Module]
    inputs: Tensor
    labels: Tensor
    normalisation: Callable[[Tensor], Tensor] | None = None
    graphs: StepGraphs | None = None
    augment: Augment | None = None

    def __post_init__(self, model: nn.Module) -> None:
        self._model = copy.deepcopy(model)
        self._model.train()
        self._layout = layout_of(model)
        self._memory: _Memory | None = None

    def stage(self, orders: Sequence[Sequence[Tensor]]) -> Staged:
        """Stage clients' batches for :meth:`train`, which may come later.

        ``orders`` are for each client, the largest first, for each epoch the positions of its
        inputs in the order of training, int64 on the CPU.
        """
        device, longest = self.labels.device, len(orders[0][0])
        batch_size = min(self.sgd.batch_of(longest), longest)
        batches = [[_in_batches(order, batch_size) for order in own] for own in orders]
        if not self.sgd.has_whole_epochs:  # each client has its own number of passes
            batches = [[torch.cat(own)] for own in batches]
        passes = [
            pad_sequence(list(each), padding_value=_PAD) for each in zip(*batches, strict=True)
        ]
        positions = torch.cat(passes)
        counts = positions != _PAD
        lengths = counts.sum(2)
        shares = counts.to(self.sgd.dtype) / lengths.clamp(min=1).unsqueeze(2)
        positions, shares = to_device(positions.clamp(min=0), device), to_device(shares, device)
        made = lengths.sign().cumsum(0) - lengths.sign()
        return Staged(lengths.tolist(), positions, shares, made)

    def train(
        self,
        start: ModelState,
        orders: Sequence[Sequence[Tensor]] | Staged,
        before_step: Callable[[], None] = uninterrupted,
        round_number: int = 1,
        correction: Correction | None = None,
        seeds: Sequence[int] = (),
        group: Group = (),
    ) -> ModelState:
        """Train clients that all start from one model; the next call overwrites what it returns.

        ``orders`` are those of :meth:`stage`, or what it made of them. The correction is the
        group's. The ``seeds`` are each client's, of what a model draws that does; the
        ``group`` are their numbers, for an augmentation.
        """
        # What the steps need is staged first: a GPU need not wait for the host again.
        staged = orders if isinstance(orders, Staged) else self.stage(orders)
        sgd, device = self.sgd.in_round(round_number), self.labels.device
        _, clients, batch_size = staged.positions.shape
        memory = self._memory_for(clients, batch_size, start)
        models = memory.models.first(clients)
        for tensor, initial in zip(models.tensors, start.tensors, strict=True):
            tensor.copy_(initial)
        memory.anchor.copy_(sgd.anchor(start.vector))
        generators = [Generator(device).manual_seed(seed) for seed in seeds]
        # A user's may have more than its state, which no other client is to find.
        model = copy.deepcopy(self._model) if seeds else self._model
        numbers = to_device(staged.made, device) if correction and correction.gradient else None
        is_own = sgd.loss not in LOSSES.values()
        plain = correction is None and not (seeds or self.augment or is_own)
        graphs = self.graphs if plain and sgd is self.sgd else None
        own = [sgd.loss.fresh(device) for _ in range(clients)] if is_own else []
        for place, (every, positions, shares, made) in enumerate(zip(*staged, strict=True)):
            before_step()
            lengths = [length for length in every if length]  # the first ones: the largest clients
            rows, longest = len(lengths), max(lengths)
            padded, batch = min(lengths) < longest, (slice(rows), slice(longest))
            memory.positions[batch].copy_(positions[batch])
            memory.shares[batch].copy_(shares[batch])
            masks = memory.shares[batch] if padded else None
            together = SideBySide(rows, masks, generators[:rows], lengths)
            loss: _Loss = (
                partial(_of_clients, own[:rows], lengths, self._gives_one_dimension)
                if is_own
                else partial(_of_samples, sgd.loss, memory.shares[batch])
            )
            number = None if numbers is None else numbers[place, :rows].unsqueeze(1)
            inputs = None
            if self.augment:
                inputs = self.inputs[positions[batch]]
                for row, length in enumerate(lengths):  # each client's own samples, as alone
                    step_of = round_number, group[row], int(made[row])
                    inputs[row, :length] = self.augment(inputs[row, :length], *step_of)
            step = partial(
                self._step, model, sgd, memory, batch, together, loss, correction, number, inputs
            )
            if graphs:
                graphs.run((rows, longest, padded), step)
            else:
                step()
        return models

    def give_back_memory(self) -> None:
        """Let go of the widest group's memory, and of the graphs that are of it."""
        self._memory = None
        if self.graphs:
            self.graphs.clear()

    def _memory_for(self, clients: int, samples: int, start: ModelState) -> _Memory:
        """Return memory for at least so many clients, each with a batch of so many samples."""
        most, longest = self._memory.positions.shape if self._memory else (0, 0)
        if self._memory is None or clients > most or samples > longest:
            # Groups may take turns of which none is the largest.
            clients, samples = max(clients, most), max(samples, longest)
            self.give_back_memory()
            models = start.many(clients)
            shares = models.vector.new_zeros(clients, samples)
            positions = torch.zeros_like(shares, dtype=torch.int64)
            self._memory = _Memory(models, torch.empty_like(start.vector), positions, shares)
        return self._memory

    def _step(
        self,
        model: nn.Module,
        sgd: LocalSGD,
        memory: _Memory,
        batch: tuple[slice, slice],
        together: SideBySide,
        loss: _Loss,
        correction: Correction | None,
        number: Tensor | None,
        inputs: Tensor | None,
    ) -> None:
        """Make a step of the first clients, on what the memory has of them: ``[batch]``.

        ``number`` ``[m, 1]`` is each one's, where a method gives the gradient; the ``inputs``
        ``[m, B, …]`` are augmented ones, used instead of the data's.
        """
        positions = memory.positions[batch]
        models, labels = memory.models.first(len(positions)), self.labels[positions]
        inputs = self._prepared(self.inputs[positions] if inputs is None else inputs)

        def gradient_at(points: Tensor) -> Tensor:
            leaf = points.detach().requires_grad_()
            given = self._layout.views(leaf) | models.buffers
            with sgd.autocast(inputs.device):
                with together:
                    channels = inputs.transpose(0, 1).flatten(1, 2)
                    outputs = functional_call(model, given, (channels,))
                total = loss(outputs, labels)
            (gradient,) = torch.autograd.grad(total, leaf)
            return gradient

        if correction is None or correction.gradient is None or number is None:
            gradient = gradient_at(models.vector)
        else:
            at = step_gradients(gradient_at, models.buffers.values)
            gradient = correction.gradient(models.vector, at, number)
        added = None if correction is None else correction.added
        corrections = () if added is None else (added[: len(positions)],)
        sgd.descend((gradient,), (models.vector,), (memory.anchor,), corrections)

    def _prepared(self, inputs: Tensor) -> Tensor:
        """Return inputs as the model takes them."""
        inputs = self.normalisation(inputs) if self.normalisation else inputs
        return inputs.to(self.sgd.dtype) if inputs.is_floating_point() else inputs

    @cached_property
    def _gives_one_dimension(self) -> bool:
        """Whether the outputs of a client alone are ``[n]``."""
        model = copy.deepcopy(self._model)
        model.eval()
        with torch.no_grad(), isolated_generators(0, "model check"):
            return bool(model(self._prepared(self.inputs[:2])).ndim == 1)


def _columns(outputs: Tensor, clients: int) -> Tensor:
    """Return outputs ``[n, m·c, …]`` as ``[n, m, c, …]``."""
    columns = outputs if outputs.ndim > 1 else outputs.unsqueeze(1)  # squeezed, of one client
    return columns.unflatten(1, (clients, -1))


def _of_samples(loss: Loss, shares: Tensor, outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the sum of the clients' means of a loss by name; all are ``[m, n]`` but outputs."""
    rows = _columns(outputs, len(labels)).flatten(0, 1)
    targets = labels.transpose(0, 1).flatten(0, 1)
    if loss is CROSS_ENTROPY:
        each = F.cross_entropy(rows, targets, reduction="none")
    else:
        each = vmap(lambda row, target: loss(row.unsqueeze(0), target.unsqueeze(0)))(rows, targets)
    return (each.view_as(shares.T) * shares.T).sum()


def _of_clients(
    losses: Sequence[Loss], lengths: Sequence[int], are_flat: bool, outputs: Tensor, labels: Tensor
) -> Tensor:
    """Return the sum of the clients' losses, each by its own copy, of its own samples."""
    by_client = _columns(outputs, len(labels)).unbind(1)
    values = [
        loss((made.squeeze(1) if are_flat else made)[:length], targets[:length])
        for loss, length, made, targets in zip(losses, lengths, by_client, labels, strict=True)
    ]
    return torch.stack(values).sum()
