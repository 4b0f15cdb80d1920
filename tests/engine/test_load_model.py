"""``fp.load_model``: the evaluated model of a run, on inputs as the data set has them."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from torch import Tensor, nn

import fednnnn_plugin as fp
from fednnnn_plugin.data.load import load_digits

QUICK = {
    "comm_round": 1,
    "epochs": 1,
    "client_num_in_total": 5,
    "client_num_per_round": 5,
    "partition_method": "iid",
    "device_args.using_gpu": False,
}
RECIPE = "digits_noniid_b_fedavg"


class Net(nn.Module):
    """A model of a user's."""

    def __init__(self, classes: int, width: int = 8) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(torch.relu(self.fc1(x)))


class Wide(Net):
    def __init__(self, classes: int) -> None:
        super().__init__(classes, 9)


class Tanh(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(torch.tanh(self.fc1(x)))


def own_data() -> tuple[Tensor, ...]:
    labels = torch.arange(180) % 4
    inputs = torch.randn(180, 6, generator=torch.Generator().manual_seed(0)) + labels.view(-1, 1)
    return inputs[:140], labels[:140], inputs[140:], labels[140:]


def accuracy(model: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    with torch.no_grad():
        return (model(inputs).argmax(1) == labels).float().mean().item()


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> fp.Run:
    return fp.run(RECIPE, overrides=QUICK, output=tmp_path_factory.mktemp("d") / "run")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> fp.Run:
    folder = tmp_path_factory.mktemp("own") / "run"
    return fp.run(RECIPE, model=Net, data=own_data(), overrides=QUICK, output=folder)


def test_model_has_the_recorded_accuracy_on_raw_images(digits: fp.Run) -> None:
    model, pixels = fp.load_model(digits.folder), load_digits(0).pixels
    before = pixels.test_images.clone()
    assert not model.training
    assert digits.summary is not None
    final = digits.summary.final_test_acc
    for images in (pixels.test_images, pixels.test_images.float()):
        assert accuracy(model, images, pixels.test_labels) == pytest.approx(final)
    assert torch.equal(pixels.test_images, before)


def test_model_of_objects_takes_inputs_as_they_are(own: fp.Run) -> None:
    data, given = own_data(), Net(4)
    before = given.fc1.weight.clone()
    assert own.summary is not None
    for model in (Net, given):
        loaded = fp.load_model(own.folder, model)
        assert isinstance(loaded, Net)
        assert accuracy(loaded, *data[2:]) == pytest.approx(own.summary.final_test_acc)
    assert torch.equal(given.fc1.weight, before)


@pytest.mark.parametrize(
    ("model", "names"), [(None, "model="), (Wide, "fc1"), (Tanh, "code"), (nn.Identity(), "model")]
)
def test_load_model_refuses_another_model(own: fp.Run, model: object, names: str) -> None:
    with pytest.raises(fp.UserError, match=names) as refused:
        fp.load_model(own.folder, model)
    assert "\n" not in str(refused.value)


def test_load_model_replaces_objects_only(digits: fp.Run) -> None:
    with pytest.raises(fp.UserError, match="nnnn_digits"):
        fp.load_model(digits.folder, Net)


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


def test_load_model_needs_permission_for_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "named_nets.py").write_text(
        "from torch import nn\n"
        "def net(n):\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, n))\n"
    )
    run = fp.run(RECIPE, model="named_nets:net", overrides=QUICK, output="run", allow_code=True)
    with pytest.raises(fp.UserError, match="allow_code=True"):
        fp.load_model(run.folder)
    assert fp.load_model(run.folder, allow_code=True)(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
