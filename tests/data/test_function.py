"""Data from a user's function: only where it is allowed, and one line for all that is wrong."""

import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fednnnn_plugin.data.function import load_from_function
from fednnnn_plugin.data.images import ImageDataset
from fednnnn_plugin.errors import UserError

HEAD = """
import numpy, random, torch
from torch import rand, tensor, zeros
U8 = torch.uint8
def images(n=4, value=0, *shape): return torch.full((n, *(shape or (1, 2, 2))), value, dtype=U8)
def labels(n=4): return torch.arange(n) % 2
"""


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest):
    """Load what a function returns, given as an expression, or any body of a function."""
    monkeypatch.chdir(tmp_path)
    module = f"own_data_{abs(hash(request.node.name))}"

    def start(returned: str, body: str = "", seed: int = 0) -> ImageDataset:
        sys.modules.pop(module, None)
        text = f"{HEAD}\ndef load():\n    {body or 'pass'}\n    return {returned}\n"
        (tmp_path / f"{module}.py").write_text(text)
        for compiled in tmp_path.glob("__pycache__/*"):
            compiled.unlink()
        return load_from_function(f"{module}:load", allow_code=True, seed=seed)

    yield start
    sys.modules.pop(module, None)


def test_uint8_is_normalised_by_its_training_part(load) -> None:
    body = "train = images(); train[:2] = 100"
    dataset = load("train, labels().short(), images(2, 200), [tensor([0, 2])][0]", body)
    assert dataset.num_classes == 3
    assert dataset.pixels.train_labels.dtype == torch.int64
    assert dataset.mean == pytest.approx((50 / 255,))
    normalised = dataset.normalised(dataset.pixels.test_images)
    assert normalised.dtype == torch.float32
    assert normalised[0, 0, 0, 0].item() == pytest.approx(3.0, rel=1e-5)  # (200 - 50) / 50


def test_floating_images_are_used_as_they_are(load) -> None:
    dataset = load("images(4, 5).double() / 4, labels(), images(2, 3).half(), labels(2)")
    train = dataset.normalised(dataset.pixels.train_images)
    assert train.dtype == torch.float32
    assert train.unique().tolist() == [1.25]
    assert dataset.normalised(dataset.pixels.test_images).unique().tolist() == [3.0]


def test_what_it_draws_follows_the_seed_and_leaves_no_trace(load) -> None:
    body = "x = rand(4, 1, 2, 2) + random.random() + numpy.random.rand()"
    numpy_state = np.random.get_state()[1].tobytes()  # noqa: NPY002
    states = random.getstate(), torch.get_rng_state(), list(sys.path)
    first, again, other = (load("x, labels(), x, labels()", body, seed) for seed in (1, 1, 2))
    assert torch.equal(first.pixels.train_images, again.pixels.train_images)
    assert not torch.equal(first.pixels.train_images, other.pixels.train_images)
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tobytes() == numpy_state  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), states[1])
    assert sys.path == states[2]


WRONG = {
    "None": "returned a NoneType; must be four tensors",
    "images(), labels()": "returned 2 values; must be four (train_images, train_labels, ",
    "images(), [0, 1], images(), labels()": "train_labels: a list; must be a tensor",
    "images().numpy(), labels(), images(), labels()": "train_images: a ndarray; must be a tensor",
    "images()[0], labels(), images(), labels()": "train_images: of [1, 2, 2]; must be [n, C, H, W]",
    "images(0), labels(0), images(), labels()": "train_images: of [0, 1, 2, 2]; must be [n, C, H,",
    "images().int(), labels(), images(), labels()": "train_images: torch.int32; must be torch.uint",
    "images(), labels().float(), images(), labels()": "train_labels: torch.float32; must be integ",
    "images(), labels(), images(), labels() > 0": "test_labels: torch.bool; must be integers",
    "images(), labels(3), images(), labels()": "train_labels: of [3]; must be [4], one an image",
    "images(), labels()[:, None], images(), labels()": "train_labels: of [4, 1]; must be [4]",
    "images(), labels(), images(4, 0, 1, 2, 3), labels()": "test_images: of [1, 2, 3]; train_images"
    " are of [1, 2, 2]",
    "images(), labels(), images().float(), labels()": "test_images: torch.float32; train_images are"
    " torch.uint8",
    "images() / 0, labels(), images() / 1, labels()": "train_images: has NaN or infinite values",
    "images() / 1, labels(), images(4, 1).double() * 1e300, labels()": "test_images: has NaN or",
    "images(), -labels(), images(), labels()": "train_labels: has -1; labels go from 0 on",
    "images(), 0 * labels(), images(), 0 * labels()": "labels up to 0: there must be 2 to 100000",
    "images(), labels() + 10**12, images(), labels()": "labels up to 1000000000001: there must be",
    "images().to('meta'), labels(), images(), labels()": "a tensor cannot be used: ",
}


@pytest.mark.parametrize("returned", WRONG)
def test_a_wrong_return_is_one_line(load, returned: str) -> None:
    with pytest.raises(UserError) as refused:
        load(returned)
    message = str(refused.value)
    assert message.isprintable()
    assert message.startswith("data_args.dataset: own_data_")
    assert f":load: {WRONG[returned]}" in message


def test_what_it_raises_is_one_line_with_its_place(load, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r":load: raised ValueError: two lines \(.*, line 9\)$"):
        load("None", "raise ValueError('two\\nlines')")
    with pytest.raises(UserError, match=r"raised FileNotFoundError: .*'gone' \("):
        load("None", "open('gone')")


def test_what_does_not_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_broken.py").write_text("1 +")
    (tmp_path / "own_needy.py").write_text("import not_there_at_all")
    (tmp_path / "own_empty.py").write_text("load = 3")
    for reference, expected in (
        ("own_gone:load", "no module own_gone: it must be installed, or in the current directory"),
        ("own_empty.sub:load", "no module own_empty.sub: it must be installed, or in the current"),
        ("own_broken:load", "does not import: SyntaxError: invalid syntax"),
        ("own_needy:load", "does not import: ModuleNotFoundError: No module named 'not_there_at"),
        ("own_empty:load", "load is not callable, in module own_empty"),
        ("own_empty:save", "save is not there, in module own_empty"),
    ):
        with pytest.raises(UserError) as refused:
            load_from_function(reference, allow_code=True, seed=0)
        assert str(refused.value).startswith(f"data_args.dataset: {reference}: ")
        assert expected in str(refused.value)
    assert not [path for path in sys.path if path == str(tmp_path)]


def test_it_does_not_run_unless_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_evil.py").write_text("open('was-here', 'w')")
    with pytest.raises(UserError) as refused:
        load_from_function("own_evil:load", allow_code=False, seed=0)
    assert str(refused.value) == (
        "data_args.dataset: 'own_evil:load' is code that the recipe asks to run: add --allow-code "
        "if you trust it"
    )
    assert not (tmp_path / "was-here").exists()
