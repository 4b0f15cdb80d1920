"""Augmented training batches: what is drawn follows from seed, round, client and step."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torchvision.transforms import v2

import fednnnn_plugin as fp
from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.rounds.augmentation import TRANSFORM, Augmentation
from fednnnn_plugin.rounds.batches import LoaderBatches
from fednnnn_plugin.rounds.loaders import LoaderData
from fednnnn_plugin.seeds import generators_state

from ..tiny import DATA, NET, Start, quick_run


def test_draws_follow_from_round_client_and_step() -> None:
    parts = []

    def drawn(x: Tensor, generator: torch.Generator) -> Tensor:
        own = torch.rand((), generator=generator).item()
        parts.append((own, torch.rand(()).item(), random.random()))
        x += sum(parts[-1])
        return x

    augment, x, before = Augmentation(drawn, 0), torch.zeros(2), generators_state()
    places = [(1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1), (1, 0, 0)]
    found = [augment(x, *place)[0].item() for place in places]
    assert len({*found}) == 4
    assert found[0] == found[-1]
    for of_one in zip(*parts, strict=True):
        assert len({*of_one}) == 4
    Augmentation(drawn, 1)(x, *places[0])
    assert not {*parts[0]} & {*parts[-1]}
    assert x.tolist() == [0, 0]
    assert generators_state() == before


def test_each_batch_of_a_loader_is_augmented_by_its_step() -> None:
    """In the second epoch by others than in the first."""
    drawn, batch = [], (torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64))

    def transform(x: Tensor, generator: torch.Generator) -> Tensor:
        drawn.append(torch.rand((), generator=generator).item())
        return x + 1

    data, sgd = LoaderData({0: [batch] * 2}, {0: 4}, [batch], 2), LocalSGD(2, 2, 0.1)
    by = Augmentation(transform, 0)
    batches = LoaderBatches(data, sgd, torch.device("cpu"), augmentation=by)
    found = [inputs for epoch in batches.epochs(0, 1) for inputs, _ in epoch]
    assert torch.stack(found).eq(1).all()
    assert len({*drawn}) == len(found) == 4


def test_transforms_of_torchvision_draw_for_each_image() -> None:
    images = torch.arange(12 * 16, dtype=torch.uint8).view(12, 1, 4, 4)
    flipped = Augmentation(v2.Compose([v2.RandomHorizontalFlip(0.5)]), 0)(images, 1, 0, 0)
    same = flipped.eq(images).flatten(1).all(1)
    turned = flipped.eq(images.flip(3)).flatten(1).all(1)
    assert torch.equal(same, ~turned)
    assert 0 < same.sum() < 12


@pytest.mark.slow
def test_training_alone_is_augmented(start: Start) -> None:
    """As training data that were shifted before: the model, and its test on what was not."""
    x, y, *test, parts = *DATA, torch.arange(140).split((30, 50, 20, 40))
    given = {"model": NET(4, p=0.0), "client_num_in_total": 4, "client_num_per_round": 2}
    start("given", data=(x + 1, y, *test, parts), **given)
    start("augmented", data=(x, y, *test, parts), train_transform=lambda x: x + 1, **given)
    expected = load_file("given/model.safetensors")
    torch.testing.assert_close(load_file("augmented/model.safetensors"), expected)
    losses = [fp.read_runs(name)["test_loss"].tolist() for name in ("given", "augmented")]
    assert losses[0] == pytest.approx(losses[1])


@pytest.mark.slow
def test_groups_are_augmented_as_clients_alone(start: Start) -> None:
    """But for rounding; with another transform they are not resumed."""
    given = {"train_transform": "own:noisy", "precision": "fp64", "allow_code": True, "epochs": 2}
    start("alone", client_batching="off", **given)
    start("groups", client_batching=3, **given)
    models = [load_file(f"{name}/model.safetensors") for name in ("alone", "groups")]
    torch.testing.assert_close(models[0], models[1], rtol=1e-9, atol=1e-9)
    with pytest.raises(fp.UserError, match=r"resume=True: .*transform"):
        start("groups", resume=True, **given | {"train_transform": v2.RandomAffine(20)})


@pytest.mark.parametrize(
    ("transform", "said"),
    [
        (lambda x: x[:, :, 1:], r"gives torch.uint8 of \[.*7, 8\].* must keep shape and dtype"),
        (v2.ToPILImage(), r"gives Image for torch.uint8 of \[1, 8, 8\]"),
        (lambda x: 1 / 0, "raised ZeroDivisionError"),
        (3, "int"),
    ],
)
def test_transform_with_a_mistake_is_refused(
    own_code: Path, transform: Callable[..., Any], said: str
) -> None:
    with pytest.raises(fp.UserError, match=rf"{TRANSFORM}: .*{said}"):
        quick_run("run", train_transform=transform)
