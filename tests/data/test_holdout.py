"""The validation part: stratified, drawn by the seed, and never of the test part."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fednnnn_plugin.data.holdout import hold_out
from fednnnn_plugin.data.images import ImageDataset, Parts, Samples, Split
from fednnnn_plugin.errors import UserError


def numbered(counts: list[int]) -> ImageDataset:
    """One pixel an image, which is its number; the test images go on counting."""
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    pixels = torch.arange(2 * len(labels), dtype=torch.uint8).reshape(-1, 1, 1, 1)
    train, test = pixels.split(len(labels))
    return ImageDataset(Parts(Samples(train, labels), Samples(test, labels)), (*"abcdef",))


def test_holdout_worked_by_hand() -> None:
    part = hold_out(numbered([8, 4, 12]), 0.25, seed=0).parts
    assert torch.bincount(part.test.labels).tolist() == [2, 1, 3]
    assert torch.bincount(part.train.labels).tolist() == [6, 3, 9]
    part = hold_out(numbered([5, 3]), 0.5, seed=0).parts
    assert torch.bincount(part.test.labels).tolist() == [3, 1]  # 2.5, 1.5: ties go to the first


@given(
    counts=st.lists(st.integers(1, 20), min_size=2, max_size=5),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 5),
)
def test_holdout_shares_no_image_and_leaves_some(
    counts: list[int], fraction: float, seed: int
) -> None:
    dataset = numbered(counts)
    total = sum(counts)
    if not 0 < round(total * fraction) < total:
        with pytest.raises(UserError, match=rf"^data_args.validation_fraction: {fraction}: leaves"):
            hold_out(dataset, fraction, seed)
        return
    part = hold_out(dataset, fraction, seed).parts
    train, held = part.train.inputs.flatten().tolist(), part.test.inputs.flatten().tolist()
    assert sorted(train + held) == list(range(total))
    assert len(held) == round(total * fraction)
    for images, labels in ((train, part.train.labels), (held, part.test.labels)):
        assert torch.equal(dataset.parts.train.labels[images], labels)


def test_holdout_leaves_each_client_its_own() -> None:
    """Every image is its number: the odd ones are client 0's, the even ones client 1's."""
    odd, even = torch.arange(24)[1::2], torch.arange(24)[::2]
    for clients in ((odd, even), (odd, even[:3])):  # of some nobody has the rest
        dataset = hold_out(divided(clients), 0.25, 0)
        images, held = (part.inputs.flatten().tolist() for part in dataset.parts)
        assert sorted([*images, *held]) == sorted(torch.cat(clients).tolist())
        assert len(held) == round(len(torch.cat(clients)) / 4)
        for before, left, test in zip(clients, *dataset.split, strict=True):
            assert len(test) == round(len(before) / 4)
            assert [images[place] for place in left] == [i for i in before if i not in held]
            assert [held[place] for place in test] == [i for i in before if i in held]
    left, held = hold_out(divided(torch.arange(24).split(2)), 0.9, 0).split
    assert {*map(len, (*left, *held))} == {1}
    left, held = hold_out(divided((torch.arange(24),) * 10), 0.25, 0).split  # which all have
    assert ({*map(len, left)}, {*map(len, held)}) == ({18}, {6})


def divided(clients: tuple[torch.Tensor, ...]) -> ImageDataset:
    return replace(numbered([8, 4, 12]), split=Split(clients))
