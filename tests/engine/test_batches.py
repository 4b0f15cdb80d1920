"""Mini-batches: every image once an epoch, in an order of its own for each round and client."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.engine.batches import LoaderBatches, LoaderData, TensorBatches
from fednnnn_plugin.seeds import torch_generator

CPU = torch.device("cpu")
CLIENT = 3  # of 30 images


def numbered(data: FederatedData, *, epochs: int = 2, seed: int = 0) -> TensorBatches:
    """The tiny federation, each label replaced by its image's position."""
    positions = torch.arange(len(data.train_labels))
    counted = FederatedData(
        train_images=data.train_images,
        train_labels=positions,
        client_indices=data.client_indices,
        test_images=data.test_images,
        test_labels=data.test_labels,
        num_classes=len(positions),
    )
    return TensorBatches(counted, LocalSGD(epochs, 8, 0.1), seed, CPU)


def orders(batches: TensorBatches, client: int, round_number: int) -> list[list[int]]:
    return [
        [position for _, labels in epoch for position in labels.tolist()]
        for epoch in batches.epochs(client, round_number)
    ]


def test_the_order_is_that_of_the_generator(data: FederatedData) -> None:
    generator = torch_generator(0, "shuffle", 1, CLIENT)
    held = data.client_indices[CLIENT]
    first = held[torch.randperm(30, generator=generator)].tolist()
    second = held[torch.randperm(30, generator=generator)].tolist()
    assert orders(numbered(data), CLIENT, round_number=1) == [first, second]


def test_an_epoch_holds_every_image_once_and_ends_with_a_short_batch(data: FederatedData) -> None:
    for epoch in numbered(data).epochs(CLIENT, 1):
        batches = list(epoch)
        assert [len(labels) for _, labels in batches] == [8, 8, 8, 6]
        seen = torch.cat([labels for _, labels in batches])
        assert sorted(seen.tolist()) == sorted(data.client_indices[CLIENT].tolist())
        images = torch.cat([images for images, _ in batches])
        assert torch.equal(images, data.train_images[seen])


def test_shuffles_differ_by_seed_round_client_and_epoch(data: FederatedData) -> None:
    batches = numbered(data)
    first, second = orders(batches, CLIENT, 1)
    assert first != second
    assert orders(batches, CLIENT, 1) == [first, second]
    assert orders(batches, CLIENT, 2)[0] != first
    assert orders(numbered(data, seed=1), CLIENT, 1)[0] != first
    pairs = zip(orders(batches, 0, 1)[0], orders(batches, 0, 2)[0], strict=True)
    assert any(one != other for one, other in pairs)
    same = FederatedData(
        data.train_images,
        torch.arange(len(data.train_labels)),
        (data.client_indices[CLIENT],) * 2,
        data.test_images,
        data.test_labels,
        10,
    )
    twins = TensorBatches(same, LocalSGD(1, 8, 0.1), 0, CPU)
    assert orders(twins, 0, 1) != orders(twins, 1, 1)


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_images_come_in_the_dtype_to_train_in(data: FederatedData, precision: str) -> None:
    sgd = LocalSGD(1, 8, 0.1, precision=precision)
    images, labels = next(next(TensorBatches(data, sgd, 0, CPU).epochs(CLIENT, 1)))
    assert (images.dtype, labels.dtype) == (sgd.dtype, torch.int64)


def test_the_test_set_comes_whole_and_in_order(data: FederatedData) -> None:
    batches = numbered(data).test()
    assert torch.equal(torch.cat([labels for _, labels in batches]), data.test_labels)
    assert torch.equal(torch.cat([images for images, _ in batches]), data.test_images)


class _Counting:
    """A loader that tells how often it was passed through."""

    passes = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.passes += 1
        yield torch.full((2, 3), self.passes, dtype=torch.float64), torch.tensor([0, 1]).int()
        yield torch.arange(3), torch.tensor([2, 0, 1])


def test_a_loader_is_passed_through_once_an_epoch() -> None:
    loader = _Counting()
    data = LoaderData({0: [], 1: loader}, {0: 0, 1: 5}, loader, num_classes=3)
    assert (data.num_clients, data.client_size(1)) == (2, 5)
    batches = LoaderBatches(data, LocalSGD(3, 2, 0.1), CPU)
    seen = [list(epoch) for epoch in batches.epochs(1, round_number=1)]
    assert loader.passes == 3
    assert [epoch[0][0].tolist() for epoch in seen] == [[[e] * 3] * 2 for e in (1.0, 2.0, 3.0)]
    (inputs, labels), (tokens, _) = seen[0]
    assert (inputs.dtype, labels.dtype) == (torch.float32, torch.int64)
    assert tokens.dtype == torch.int64  # indices of words stay what they are
    assert len(list(batches.test())) == 2
