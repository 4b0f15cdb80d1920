"""Mini-batches: every image once an epoch, in an order of its own for each round and client."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fednnnn_plugin.client.group_sgd import GroupSGD
from fednnnn_plugin.client.local_sgd import LocalSGD, Precision
from fednnnn_plugin.client.replica import layout_of, named_tensors
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.data.images import ImageDataset, Pixels
from fednnnn_plugin.engine.batches import LoaderBatches, LoaderData, TensorBatches
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.models import create_model
from fednnnn_plugin.seeds import torch_generator

CPU = torch.device("cpu")
CLIENT = 3  # of 30 images


def numbered(data: FederatedData, *, seed: int = 0) -> TensorBatches:
    """The tiny federation, each label replaced by its image's position."""
    positions = torch.arange(len(data.train_labels))
    return TensorBatches(replace(data, train_labels=positions), LocalSGD(2, 8, 0.1), seed, CPU)


def orders(batches: TensorBatches, client: int, round_number: int) -> list[list[int]]:
    return [
        [position for _, labels in epoch for position in labels.tolist()]
        for epoch in batches.epochs(client, round_number)
    ]


def test_epoch_and_test_hold_every_image_once(data: FederatedData) -> None:
    for epoch in numbered(data).epochs(CLIENT, 1):
        batches = list(epoch)
        assert [len(labels) for _, labels in batches] == [8, 8, 8, 6]
        seen = torch.cat([labels for _, labels in batches])
        assert sorted(seen.tolist()) == sorted(data.client_indices[CLIENT].tolist())
        images = torch.cat([images for images, _ in batches])
        assert torch.equal(images, data.train_images[seen])
    images, labels = map(torch.cat, zip(*numbered(data).test(), strict=True))
    assert torch.equal(images, data.test_images)
    assert torch.equal(labels, data.test_labels)


def test_loader_data_refuses_iterators() -> None:
    batches = [(torch.zeros(1, 2), torch.zeros(1))]
    LoaderData({0: batches}, {0: 1}, batches, 2)
    for train, test, whose in (
        (iter(batches), batches, "client 0"),
        (batches, iter(batches), "test"),
    ):
        with pytest.raises(UserError, match=f"dataset: .*{whose}.*once"):
            LoaderData({0: train}, {0: 1}, test, 2)


def test_shuffles_differ_by_seed_round_client_and_epoch(data: FederatedData) -> None:
    twins = replace(data, client_indices=(data.client_indices[CLIENT],) * 2)
    batches = numbered(twins)
    drawn = [
        *orders(batches, 0, 1),
        *orders(batches, 1, 1),
        *orders(batches, 0, 2),
        *orders(numbered(twins, seed=1), 0, 1),
    ]
    assert len({tuple(order) for order in drawn}) == len(drawn) == 8
    generator, held = torch_generator(0, "shuffle", 1, 0), data.client_indices[CLIENT]
    for order in drawn[:2]:
        assert order == held[torch.randperm(30, generator=generator)].tolist()


def test_activations_in_channels_last_are_the_same_function(data: FederatedData) -> None:
    images, model = torch.randn(2, 1, 28, 28), create_model("nnnn_mnist", 0)
    batches = TensorBatches(data, LocalSGD(1, 8, 0.1), 0, CPU, any_order=True)
    staged, _ = batches.staged((images, torch.zeros(2)))
    seen: list[Tensor] = []
    first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    first.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    torch.testing.assert_close(model(staged), model(images), rtol=0, atol=1e-5)
    assert seen[0].is_contiguous(memory_format=torch.channels_last)
    assert seen[1].is_contiguous()
    assert not seen[0].is_contiguous()


@pytest.fixture
def pixels(data: FederatedData) -> tuple[FederatedData, FederatedData]:
    """The tiny federation in uint8 of three channels, and the same normalised at once."""
    values = [(images * 40 + 99).clamp(0, 255) for images in (data.train_images, data.test_images)]
    train, test = ((x * torch.tensor([1.0, 0.5, 0.3])[:, None, None]).byte() for x in values)
    how = ImageDataset(Pixels(*[train] * 4), (), (99.0, 47.1, 30.3), (50.0, 33.3, 7.0))
    kept = replace(data, train_images=train, test_images=test, normalisation=how.normalisation)
    whole = [kept.normalised(images) for images in (train, test)]
    return kept, replace(data, train_images=whole[0], test_images=whole[1])


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize("any_order", [True, False])
def test_batches_normalise_uint8_to_the_same_bits(
    pixels: tuple[FederatedData, FederatedData], any_order: bool, precision: Precision
) -> None:
    sgd = LocalSGD(2, 8, 0.1, precision=precision)
    kept, whole = (TensorBatches(x, sgd, 0, CPU, any_order=any_order) for x in pixels)
    assert kept.images.dtype == torch.uint8
    for epochs in zip(kept.epochs(CLIENT, 1), whole.epochs(CLIENT, 1), strict=True):
        for (images, _), (expected, _) in zip(*epochs, strict=True):
            assert torch.equal(images, expected)
            assert (images.dtype, images.stride()) == (expected.dtype, expected.stride())
    [(images, _)] = map(kept.staged, kept.test())
    [(expected, _)] = map(whole.staged, whole.test())
    assert torch.equal(images, expected)


def test_group_normalises_its_batches_to_the_same_bits(
    pixels: tuple[FederatedData, FederatedData],
) -> None:
    sgd, model = LocalSGD(2, 8, 0.1), nn.Sequential(nn.Flatten(), nn.Linear(192, 10))
    start = layout_of(model).gather(named_tensors(model))
    trained = []
    for data in pixels:
        batches = TensorBatches(data, sgd, 0, CPU)
        given = batches.images, batches.labels, 2, batches.normalisation
        orders = [batches.orders(client, 1) for client in (CLIENT, 1)]
        trained.append(GroupSGD(sgd, model, *given).train(start, orders).vector)
    assert torch.equal(*trained)
    assert not torch.equal(trained[0][0], trained[0][1])


class _Counting:
    """A loader that tells how often it was passed through."""

    passes = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.passes += 1
        yield torch.full((2, 3), self.passes, dtype=torch.float64), torch.tensor([0, 1]).int()
        yield torch.arange(3), torch.tensor([2, 0, 1])


def test_loader_is_passed_through_once_an_epoch() -> None:
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
