"""A federation's data as mini-batches: staged tensors, or whatever iterables a user brought."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from itertools import count, islice
from typing import Any

import torch
from torch import Tensor

from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.rounds.augmentation import Augmentation
from fednnnn_plugin.rounds.loaders import LoaderData
from fednnnn_plugin.seeds import torch_generator
from fednnnn_plugin.server.transfer import to_device

Batch = tuple[Tensor, Tensor]
AnyOrder = bool | Callable[[Tensor], bool]


def client_steps(data: FederatedData | LoaderData, sgd: LocalSGD) -> list[int]:
    """Return how many steps each client takes in a round."""
    if isinstance(data, FederatedData):
        sizes = map(len, data.client_indices)
        return [sgd.steps(-(-size // sgd.batch_of(size))) for size in sizes]
    return [_loader_steps(data, client, sgd) for client in range(data.num_clients)]


def _loader_steps(data: LoaderData, client: int, sgd: LocalSGD) -> int:
    loader: Any = data.train_loaders[client]
    try:
        return sgd.steps(0 if sgd.local_steps else len(loader))
    except TypeError as error:
        raise UserError(
            "train_args.epochs",
            f"client {client}'s data: {type(loader).__name__}",
            "must have a length, which a part of an epoch or a client_method needs; or, if it "
            "ends by itself, set local_steps instead of epochs",
        ) from error


@dataclass(eq=False, repr=False)
class Batches:
    """A federation's mini-batches, on the device and in the dtype to train in once staged.

    ``any_order`` says that the model takes images in any order of memory, or says it of two of a
    batch: on a CPU they come in the faster one.
    """

    data: FederatedData | LoaderData
    sgd: LocalSGD
    device: torch.device
    _: KW_ONLY
    any_order: AnyOrder = False
    augmentation: Augmentation | None = None

    def _in_training(
        self, batches: Iterable[Batch], client: int, round_number: int, steps: Iterator[int]
    ) -> Iterator[Batch]:
        """Stage the batches of a client's pass, augmented; each takes the next of its ``steps``."""
        for given, labels in batches:
            inputs = given
            if self.augmentation:
                inputs = self.augmentation(given, round_number, client, next(steps))
            yield self.staged((inputs, labels))

    def epochs(self, client: int, round_number: int) -> Iterator[Iterator[Batch]]:
        """Yield each pass's batches, staged: local epochs, of which the last may be a part."""
        raise NotImplementedError

    def test(self, *, by_client: bool = False) -> Iterator[tuple[int, Batch]]:
        """Yield the test set's batches, with 0; or each client's, with its number. As they are."""
        raise NotImplementedError

    def staged(self, batch: Batch) -> Batch:
        """Stage a batch; integers, such as tokens and labels, stay integers.

        The inputs are a copy: a model may change them in place.
        """
        inputs, labels = batch
        dtype = self.sgd.dtype if inputs.is_floating_point() else inputs.dtype
        order = torch.preserve_format
        if inputs.ndim == 4 and self.device.type == "cpu":
            free = self.any_order(inputs[:2]) if callable(self.any_order) else self.any_order
            # Not contiguous(): it leaves the strides of one channel, by which PyTorch goes.
            order = torch.channels_last if free else torch.preserve_format
        inputs = inputs.to(self.device, dtype, memory_format=order, copy=True)
        kind = self.sgd.dtype if labels.is_floating_point() else torch.int64
        return inputs, labels.to(self.device, kind)


@dataclass(eq=False, repr=False)
class LoaderBatches(Batches):
    """Batches as a user's iterables give them; each epoch iterates anew.

    Where epochs are not whole, or steps are counted, the last pass is cut short.
    """

    data: LoaderData

    def epochs(self, client: int, round_number: int) -> Iterator[Iterator[Batch]]:
        loader: Any = self.data.train_loaders[client]
        of = client, round_number, count()
        if self.sgd.has_whole_epochs:
            for _ in range(int(self.sgd.epochs or 0)):
                yield self._in_training(loader, *of)
            return
        left, before = _loader_steps(self.data, client, self.sgd), 0

        def one_pass() -> Iterator[Batch]:
            nonlocal left
            for batch in islice(loader, left):
                left -= 1
                yield batch

        while left not in (0, before):  # the same as before: the loader has no batch
            before = left
            yield self._in_training(one_pass(), *of)

    def test(self, *, by_client: bool = False) -> Iterator[tuple[int, Batch]]:
        loaders = self.data.client_tests if by_client else {0: self.data.test_loader}
        for client, loader in sorted(loaders.items()):
            for batch in loader:
                yield client, batch


@dataclass(eq=False, repr=False)
class TensorBatches(Batches):
    """Batches cut from tensors that are on the device; images are normalised when they are staged.

    Epoch e of client k in round r is a permutation from the generator of
    (seed, ``"shuffle"``, r, k), which continues from epoch to epoch.
    """

    data: FederatedData
    _: KW_ONLY
    seed: int
    test_batch: int = 200

    def __post_init__(self) -> None:
        data, device = self.data, self.device
        self.images, self.labels = data.train_images.to(device), data.train_labels.to(device)
        self._test = data.test_images.to(device), data.test_labels.to(device)
        self.normalisation = data.normalisation and data.normalisation.to(device)

    def orders(self, client: int, round_number: int) -> list[Tensor]:
        """Return for each pass the positions of the client's images, on the CPU."""
        generator = torch_generator(self.seed, "shuffle", round_number, client)
        positions = self.data.client_indices[client]
        batch_size = self.sgd.batch_of(len(positions))
        batches = -(-len(positions) // batch_size)
        left, orders = self.sgd.steps(batches) if batches else 0, list[Tensor]()
        while left > 0:
            order = positions[torch.randperm(len(positions), generator=generator)]
            orders.append(order[: left * batch_size])
            left -= batches
        return orders

    def epochs(self, client: int, round_number: int) -> Iterator[Iterator[Batch]]:
        steps = count()
        for order in self.orders(client, round_number):
            picks = to_device(order, self.device).split(self.sgd.batch_of(len(order)))
            batches = ((self.images[picked], self.labels[picked]) for picked in picks)
            yield self._in_training(batches, client, round_number, steps)

    def staged(self, batch: Batch) -> Batch:
        inputs, labels = batch
        return super().staged(
            (self.normalisation(inputs) if self.normalisation else inputs, labels)
        )

    def test(self, *, by_client: bool = False) -> Iterator[tuple[int, Batch]]:
        if not by_client:
            parts = (tensor.split(self.test_batch) for tensor in self._test)
            yield from ((0, batch) for batch in zip(*parts, strict=True))
            return
        held_out = self.data.client_holdouts
        images, labels = (self.images, self.labels) if held_out else self._test
        for client, positions in enumerate(held_out or self.data.client_test_indices):
            if len(positions):
                for picked in to_device(positions, self.device).split(self.test_batch):
                    yield client, (images[picked], labels[picked])
