"""Local training of several clients in one set of kernels."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import product

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from fednnnn_plugin.client.local_sgd import LocalSGD, uninterrupted
from fednnnn_plugin.client.masked_norm import MaskedBatchNorm
from fednnnn_plugin.client.replica import layout_of
from fednnnn_plugin.server.layout import ModelState

#: Clients that train together, or one alone; ranks and threads are dealt these.
Group = tuple[int, ...]


class GroupSGD:
    """:class:`LocalSGD` on clients side by side, the rows of one matrix ``[m, d]``.

    Each client keeps its own weights, buffers, batches and anchor: the function is that of one
    client after another, in another order of additions. The rows fall in size, so that those that
    still have a batch are a shrinking prefix, and all of them take a step at once: an epoch takes
    as many steps as the largest client's.

    Memory for ``most`` clients of a copy of ``model`` is held from the first group on, and given
    back where a GPU has no more: the next group, which is to be smaller, gets its own. ``inputs``
    ``[n, …]`` and ``labels`` ``[n]`` are on the device; ``normalisation`` is of a batch's inputs,
    ``[m, B, …]``.
    """

    def __init__(
        self,
        sgd: LocalSGD,
        model: nn.Module,
        inputs: Tensor,
        labels: Tensor,
        most: int,
        normalisation: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self._sgd, self._inputs, self._labels = sgd, inputs, labels
        self._normalisation = normalisation
        self._model = copy.deepcopy(model).train()
        self._layout, self._most = layout_of(model), most
        self._held: ModelState | None = None
        self._gradient = vmap(grad(self._loss), in_dims=(0, 0, 0, 0, 0, None))

    def train(
        self,
        start: ModelState,
        orders: Sequence[Sequence[Tensor]],
        before_step: Callable[[], None] = uninterrupted,
        round_number: int = 1,
        correction: Tensor | None = None,
    ) -> ModelState:
        """Train clients that all start from one model; the next call overwrites what it returns.

        ``orders`` are for each client, the largest first, for each epoch the positions of its
        inputs in the order of training, int64 on the CPU. The correction is ``h``, ``[m, d]``.
        """
        sgd = self._sgd.in_round(round_number)
        sizes = torch.tensor([len(order[0]) for order in orders])
        longest = int(sizes[0])
        batch_size = sgd.batch_of(longest)
        laid = [pad_sequence(list(epoch), batch_first=True) for epoch in zip(*orders, strict=True)]
        with self._gives_back_memory(len(orders)):
            # What the steps need is staged first: a GPU need not wait for the host again.
            epochs = torch.stack(laid).to(self._labels.device)
            shares = self._shares(sizes, batch_size).to(self._labels.device)
            anchor, trained = sgd.anchor(start.vector), self._all_at(start, len(orders))
            for epoch, begin in product(epochs, range(0, longest, batch_size)):
                before_step()
                end, rows = min(begin + batch_size, longest), int((sizes > begin).sum())
                models, batch = trained.first(rows), epoch[:rows, begin:end]
                # PyTorch's own norm, side by side, takes neither padding nor bfloat16 and float32.
                masks_norm = int(sizes[rows - 1]) < end or sgd.precision == "bf16"
                inputs, labels = self._inputs[batch], self._labels[batch]
                if self._normalisation:
                    inputs = self._normalisation(inputs)
                inputs = inputs.to(sgd.dtype)
                given = (models.vector, models.buffers, inputs, labels, shares[:rows, begin:end])
                with sgd.autocast(inputs.device):
                    gradient = self._gradient(*given, masks_norm)
                corrections = () if correction is None else (correction[:rows],)
                sgd.descend((gradient,), (models.vector,), (anchor,), corrections)
        return trained

    @contextmanager
    def _gives_back_memory(self, clients: int) -> Iterator[None]:
        """Hold no models where a GPU has no more memory for a group of so many clients."""
        try:
            yield
        except torch.cuda.OutOfMemoryError:
            self._held, self._most = None, clients // 2
            raise

    def _all_at(self, start: ModelState, count: int) -> ModelState:
        """Return the models of so many clients, each at the start."""
        if self._held is None or len(self._held.vector) < count:
            most = max(count, self._most)
            vector, *buffers = (tensor.repeat(most, *[1] * tensor.ndim) for tensor in start.tensors)
            self._held = ModelState(vector, dict(zip(start.buffers, buffers, strict=True)))
        models = self._held.first(count)
        for tensor, initial in zip(models.tensors, start.tensors, strict=True):
            tensor.copy_(initial)
        return models

    def _shares(self, sizes: Tensor, batch_size: int) -> Tensor:
        """Return the share ``[m, n]`` of each sample in its batch's loss, 0 for what is padded."""
        columns, sizes = torch.arange(int(sizes[0])), sizes.unsqueeze(1)
        lengths = (sizes - columns // batch_size * batch_size).clamp(1, batch_size)
        return (columns < sizes).to(self._sgd.dtype) / lengths

    def _loss(
        self,
        vector: Tensor,
        buffers: dict[str, Tensor],
        inputs: Tensor,
        labels: Tensor,
        shares: Tensor,
        masks_norm: bool,
    ) -> Tensor:
        """Return a client's loss."""
        with MaskedBatchNorm(shares) if masks_norm else nullcontext():
            logits = functional_call(self._model, self._layout.views(vector) | buffers, (inputs,))
        return (F.cross_entropy(logits, labels, reduction="none") * shares).sum()
