"""``fp.load_model``: the evaluated model of a run, on inputs as the data set has them."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from torch import Tensor, nn

import fednnnn_plugin as fp
from fednnnn_plugin.data.load import load_digits

from .conftest import cell, quick_run

CELL = cell()
FEDAVG, IID = "digits_noniid_b_fedavg", {"partition_method": "iid", "comm_round": 1}


def accuracy(model: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    with torch.no_grad():
        return (model(inputs).argmax(1) == labels).float().mean().item()


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> fp.Run:
    return quick_run(tmp_path_factory.mktemp("digits") / "run", FEDAVG, **IID)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> fp.Run:
    objects = {"model": CELL["Net"], "data": CELL["tensors"]()}
    return quick_run(tmp_path_factory.mktemp("own") / "run", FEDAVG, **IID, **objects)


def test_model_has_the_recorded_accuracy_on_raw_images(digits: fp.Run) -> None:
    model, pixels = fp.load_model(digits.folder), load_digits(0).pixels
    before = pixels.test_images.clone()
    assert not model.training
    assert digits.summary is not None
    for images in (pixels.test_images, pixels.test_images.float()):
        found = accuracy(model, images, pixels.test_labels)
        assert found == pytest.approx(digits.summary.final_test_acc)
    assert torch.equal(pixels.test_images, before)


def test_model_of_objects_takes_inputs_as_they_are(own: fp.Run) -> None:
    given = CELL["Net"](4)
    before = given.fc1.weight.clone()
    assert own.summary is not None
    for model in (CELL["Net"], given):
        found = accuracy(fp.load_model(own.folder, model), *CELL["tensors"]()[2:])
        assert found == pytest.approx(own.summary.final_test_acc)
    assert torch.equal(given.fc1.weight, before)


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (None, "model="),
        (cell("width=8", "width=9")["Net"], "fc1"),
        (cell("torch.relu", "torch.tanh")["Net"], "code"),
        (nn.Identity(), "model"),
    ],
)
def test_load_model_refuses_another_model(own: fp.Run, model: object, names: str) -> None:
    with pytest.raises(fp.UserError, match=names) as refused:
        fp.load_model(own.folder, model)
    assert "\n" not in str(refused.value)


def test_load_model_replaces_objects_only(digits: fp.Run) -> None:
    with pytest.raises(fp.UserError, match="nnnn_digits"):
        fp.load_model(digits.folder, CELL["Net"])


def test_load_model_without_a_model_is_refused(tmp_path: Path, digits: fp.Run) -> None:
    with pytest.raises(fp.UserError, match=r"recipe\.yaml"):
        fp.load_model(tmp_path / "nowhere")
    (tmp_path / "recipe.yaml").write_bytes((digits.folder / "recipe.yaml").read_bytes())
    with pytest.raises(fp.UserError, match=r"model\.safetensors"):
        fp.load_model(tmp_path)
    tensors = save({"w": torch.zeros(2)})
    for content in (b"no tensors", tensors, save({}, {"fednnnn_plugin": "{}"})):
        (tmp_path / "model.safetensors").write_bytes(content)
        with pytest.raises(fp.UserError, match=r"model\.safetensors: "):
            fp.load_model(tmp_path)
