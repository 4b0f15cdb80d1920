from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits as bundled

from fednnnn_plugin.data.load import load_images

NOWHERE = Path("/nonexistent")


def test_a_stratified_split_of_1437_and_360() -> None:
    pixels = load_images("digits", NOWHERE, download=True, seed=0).pixels
    assert pixels.train_images.shape == (1437, 1, 8, 8)
    assert pixels.test_images.shape == (360, 1, 8, 8)
    assert pixels.train_labels.dtype == torch.int64
    share = torch.bincount(pixels.test_labels) / np.bincount(bundled().target)
    assert (share - 360 / 1797).abs().max() < 1 / 174  # within an image of each class's share


def test_every_image_is_in_one_part_with_its_label() -> None:
    pixels = load_images("digits", NOWHERE, download=False, seed=5).pixels
    images = torch.cat([pixels.train_images, pixels.test_images]).reshape(1797, 64)
    labels = torch.cat([pixels.train_labels, pixels.test_labels])
    dealt = sorted(map(tuple, torch.cat([labels[:, None], images], dim=1).tolist()))
    source = bundled()
    rows = np.concatenate([source.target[:, None], source.data], axis=1).astype(int)
    assert dealt == sorted(map(tuple, rows.tolist()))


def test_the_seed_decides_the_split() -> None:
    first, again, other = (
        load_images("digits", NOWHERE, download=False, seed=seed).pixels for seed in (1, 1, 2)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first.test_images, other.test_images)


def test_normalised_to_mean_0_and_standard_deviation_1() -> None:
    dataset = load_images("digits", NOWHERE, download=False, seed=0)
    images = dataset.normalised(dataset.pixels.train_images)
    assert images.dtype == torch.float32
    assert images.is_contiguous()
    assert images.mean().item() == pytest.approx(0, abs=1e-6)
    assert images.std(correction=0).item() == pytest.approx(1, abs=1e-6)
    assert NOWHERE.exists() is False
