"""Data from a user's function: any shape, tensors or arrays, and one line for all that is wrong."""

import sys
from pathlib import Path

import pytest
import torch

from fednnnn_plugin.data.images import ImageDataset
from fednnnn_plugin.data.own_data import load_own_data

from .conftest import refusal

HEAD = """
import numpy as np, random, torch
from torch import rand, tensor
U8 = torch.uint8
def images(n=4, value=0, *shape): return torch.full((n, *(shape or (1, 2, 2))), value, dtype=U8)
def labels(n=4): return torch.arange(n) % 2
def nested(parts): return torch.nested.nested_tensor([part.float() for part in parts])
def fixed(array): array.setflags(write=False); return array
"""


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Load what a function returns, given as an expression, or any body of a function."""
    monkeypatch.chdir(tmp_path)

    def start(returned: str, body: str = "pass", seed: int = 0) -> ImageDataset:
        sys.modules.pop("own_data", None)
        text = f"{HEAD}\ndef load():\n    {body}\n    return {returned}\n"
        (tmp_path / "own_data.py").write_text(text)
        for compiled in tmp_path.glob("__pycache__/*"):
            compiled.unlink()
        return load_own_data("own_data:load", allow_code=True, seed=seed).dataset

    yield start
    sys.modules.pop("own_data", None)


@pytest.mark.parametrize("as_array", ["", ".numpy()"])
def test_own_data_of_uint8_is_normalised(load, as_array: str) -> None:
    body = "train = images(); train[:2] = 100"
    returned = (
        f"train{as_array}, labels().short(){as_array}, images(2, 200){as_array}, tensor([0, 2])"
    )
    dataset = load(returned, body)
    assert dataset.class_names == ("0", "1", "2")
    assert dataset.pixels.train_labels.dtype == torch.int64
    assert dataset.mean == pytest.approx((50,))
    normalised = dataset.normalisation(dataset.pixels.test_images)
    assert normalised.dtype == torch.float32
    assert normalised[0, 0, 0, 0].item() == pytest.approx(3.0, rel=1e-5)  # (200 - 50) / 50


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("inputs", "values", "dtype"),
    [
        ("np.arange({n} * 2.).reshape({n}, 2)[::-1]", [[2, 3], [0, 1]], torch.float32),
        ("fixed(np.ones(({n}, 1), dtype=np.float16))", [[1], [1]], torch.float32),
        ("images({n}, {n}).double() / 4", [[[[0.5] * 2] * 2]] * 2, torch.float32),
        ("torch.ones({n}, dtype=torch.int64)", [1, 1], torch.int64),
    ],
)
def test_own_data_of_other_types_stays_as_it_is(
    load, inputs: str, values, dtype: torch.dtype
) -> None:
    train, test = inputs.format(n=4), inputs.format(n=2)
    dataset = load(f"{train}, np.arange(4), {test}, np.arange(2, dtype='u2')")
    tensor = dataset.pixels.test_images
    assert tensor.tolist() == values
    assert tensor.dtype == dataset.pixels.train_images.dtype == dtype
    assert dataset.normalisation is None
    assert len(dataset.class_names) == 4


def test_own_data_draws_follow_the_seed(load) -> None:
    body = "x = rand(4, 1, 2, 2) + random.random() + np.random.rand()"
    first, again, other = (load("x, labels(), x, labels()", body, seed) for seed in (1, 1, 2))
    assert torch.equal(first.pixels.train_images, again.pixels.train_images)
    assert not torch.equal(first.pixels.train_images, other.pixels.train_images)


REST = "labels(), images(), labels()"
WRONG = {
    "images(), labels()": "a tuple of 2; must be tensors or arrays",
    f"images()[0, 0, 0, 0], {REST}": "train_inputs: torch.uint8 of []; must be [n, ...]",
    f"images(0), {REST}": "train_inputs: torch.uint8 of [0, 1, 2, 2]; must be [n, ...], not empty",
    "images(), labels(3), images(), labels()": "train_labels: 3, for 4 train_inputs",
    "images(), labels(), images(4, 0, 1, 2, 3), labels()": "test_inputs: torch.uint8 of [4, 1, 2, ",
    "1 / 0": "raised ZeroDivisionError: division by zero (",
    "images() / 1, labels(), images(4, 1).double() * 1e300, labels()": "test_inputs: has NaN or",
    f"nested([images(), images(3)]), {REST}": "train_inputs: cannot be used: must be neither",
    f"np.ma.masked_array(np.ones((4, 2))), {REST}": "train_inputs: cannot be used: must not be ma",
    "images(), -labels(), images(), labels()": "train_labels: has -1; labels go from 0 on",
    "images(), 0 * labels(), images(), 0 * labels()": "labels up to 0: there must be 2 to 100000",
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("returned", WRONG)
def test_own_data_that_does_not_fit_is_refused(load, returned: str) -> None:
    message = refusal(load, returned)
    assert message.startswith(f"data_args.dataset: own_data:load: {WRONG[returned]}")


def test_own_data_fingerprint_says_what_was_drawn() -> None:
    labels = torch.arange(4) % 2, torch.arange(2)

    def drawn() -> tuple[torch.Tensor, ...]:
        return torch.rand(4, 2), labels[0], torch.rand(2, 2), labels[1]

    def fixed() -> tuple[object, ...]:
        return torch.ones(4, 2), labels[0], torch.ones(2, 2), labels[1], [[0, 1], [2, 3]]

    def of(function: object, seed: int) -> dict[str, dict[str, str]]:
        return dict(load_own_data("<object>:it", seed=seed, given=function).fingerprint)

    one, other = of(drawn, 0)["data"], of(drawn, 1)["data"]
    assert one.keys() == {"code", "drawn_tensors"}
    assert one["code"] == other["code"]
    assert one["drawn_tensors"] != other["drawn_tensors"]
    assert of(fixed, 0) == of(fixed, 1)
    assert of(fixed, 0).keys() == {"data", "split"}
