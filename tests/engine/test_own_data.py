"""Runs on a user's own images and tensors, and with models of torchvision."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from PIL import Image
from torch import nn
from torch.nested import nested_tensor

from fednnnn_plugin.cli import main
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.engine.model_check import check_model, own_copy
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.models import create_model
from fednnnn_plugin.recipe import Recipe, load_recipe

from .conftest import read_records

REST = """
common_args: {training_type: simulation}
train_args:
  {federated_optimizer: FedNNNN, beta: 0.7, gamma: 0.8, client_num_in_total: 2, comm_round: 2,
   client_num_per_round: 2, epochs: 1, batch_size: 6, learning_rate: 0.01, checkpoint_every: 1}
validation_args: {frequency_of_the_test: 1}
device_args: {using_gpu: false}
comm_args: {backend: sp}
tracking_args: {enable_wandb: false}
"""
DATA = "data_args: {partition_method: n_class, classes_per_client: 2, data_cache_dir: cache, "
IMAGES = DATA + "dataset: image_folder, data_dir: images}\nmodel_args: {model: resnet18}"
TENSORS = DATA + "dataset: 'own_tensors:load'}\nmodel_args: {model: 'own_tensors:create'}"
# Tokens, which stay integers, and a model that draws, and keeps a count that no state holds.
FUNCTION = """
import torch
from torch import nn

def load():
    labels = torch.arange(48) % 3
    inputs = torch.randint(9, (48, 5))
    return inputs[:36], labels[:36], inputs[36:], labels[36:]

class Counting(nn.Module):
    steps = 0

    def forward(self, x):
        self.steps += self.training
        return x * (1 + self.steps)

class Growing(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(0))

    def forward(self, x):
        if self.training:
            self.seen = torch.cat([self.seen, x.mean()[None].detach()])
        return x

def create():
    return nn.Sequential(
        nn.Embedding(9, 4), nn.Flatten(), nn.Dropout(), nn.Linear(20, 3), Counting()
    )

def grow():
    return nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(20, 3), Growing())
"""
Fednnnn = Callable[..., Result]


@pytest.fixture
def fednnnn(own_code: Path) -> Fednnnn:
    """Run a command in a folder with images, a module and the recipes of both."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 12), ("test", 4)):
        for label, name in enumerate(("ant", "bee", "cow")):
            folder = own_code / "images" / part / name
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 90, (32, 32, 3)) + 80 * label
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i}.png")
    Path("own_tensors.py").write_text(FUNCTION)
    for name, data in {"images": IMAGES, "tensors": TENSORS}.items():
        Path(f"{name}.yaml").write_text(data + REST)
    return lambda *words: CliRunner().invoke(main, words, catch_exceptions=False)


def check_resume(fednnnn: Fednnnn, *words: str) -> None:
    """Check that a run ends well, and the same after a stop."""
    one = "train_args.comm_round=1"
    for more in (["--output=a"], ["--output=b", "--set", one], ["--output=b", "--resume"]):
        ended = fednnnn("run", *words, *more)
        assert ended.exit_code == 0, ended.stderr
    one, other = (Path(folder, "model.safetensors").read_bytes() for folder in "ab")
    assert one == other


@pytest.mark.slow
def test_resnet18_on_an_image_folder(fednnnn: Fednnnn) -> None:
    check_resume(fednnnn, "images.yaml")


def test_tensors_of_a_function_with_a_drawing_model(fednnnn: Fednnnn) -> None:
    """Dropout: each client draws its own, the same after a stop."""
    check_resume(fednnnn, "tensors.yaml", "--allow-code")


@pytest.mark.parametrize(("allowed", "said"), [(0, "seen: shape (3,)"), (2, "none accepted")])
def test_model_whose_form_changes_fails_its_client(
    fednnnn: Fednnnn, allowed: int, said: str
) -> None:
    settings = ("model=own_tensors:grow", f"max_client_failures={allowed}")
    words = ("run", "tensors.yaml", "--allow-code", *(f"--set={setting}" for setting in settings))
    ended = fednnnn(*words)
    assert ended.exit_code == 1
    assert said in ended.stderr.splitlines()[-1]


@pytest.mark.slow
def test_run_folder_is_read_without_its_code(fednnnn: Fednnnn) -> None:
    assert fednnnn("run", "tensors.yaml", "--allow-code", "--output=a").exit_code == 0
    sys.modules.pop("own_tensors")
    Path("own_tensors.py").write_text("open('was-here', 'w')")
    assert fednnnn("report", "a").exit_code == 0
    more = ("--output=a", "--set=train_args.comm_round=3", "--resume")
    ended = fednnnn("run", "tensors.yaml", *more)
    assert (ended.exit_code, ended.stderr.count("\n")) == (2, 1)
    assert not Path("was-here").exists()


class NotCopied(nn.Linear):
    def __deepcopy__(self, memo: object) -> None:
        raise RuntimeError("only leaves are copied")


class Masked(nn.Linear):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        least = torch.finfo(torch.float64).min  # and not finite in float32
        self.register_buffer("mask", torch.tensor([0.0, least], dtype=torch.float64))


class Counting(nn.Linear):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.register_buffer("seen", torch.zeros((), dtype=torch.uint16))


class Rotary(nn.Linear):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.register_buffer("angles", torch.ones(2) * 1j, persistent=False)


def buffered(tensor: torch.Tensor) -> nn.Module:
    model = nn.Linear(2, 2)
    model.register_buffer("buffer", tensor)
    return model


class HeadOnly(nn.Sequential):
    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        whole = super().state_dict(*args, **kwargs)
        return {name: tensor for name, tensor in whole.items() if name.startswith("1.")}


class Leaving(nn.Identity):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        raise SystemExit(0)


class Single(nn.Linear):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images.float())


class PairInTraining(nn.Identity):
    def forward(self, logits: torch.Tensor) -> object:
        return (logits, logits) if self.training else logits


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        (nn.LazyLinear(2), "without a size"),
        (nn.Linear(2, 2).requires_grad_(requires_grad=False), "no parameter that requires"),
        (NotCopied(2, 2), "cannot be copied: RuntimeError: only leaves are copied"),
        (Masked(2, 2), "mask is not finite"),
        (nn.Linear(2, 2, device="meta"), "weight: torch.strided on meta"),
        (nn.Linear(2, 2, dtype=torch.complex64), "weight is torch.complex64: must be float16"),
        (Rotary(2, 2), "angles is torch.complex64: keep it as torch.view_as_real"),
        (HeadOnly(nn.Linear(2, 2), nn.Linear(2, 2)), r"0\.bias requires .* not have it"),
        (torch.jit.ScriptModule(), "is TorchScript"),
        (buffered(torch.ones(2).to_sparse()), "buffer: torch.sparse_coo on cpu: must be a dense"),
        (buffered(nested_tensor([torch.ones(2)])), "buffer: nested on cpu: must be a dense tensor"),
        (buffered(torch.ones(()).expand(2)), "buffer is expanded: .* clone"),
        (Counting(2, 2), "seen is torch.uint16: must be .* uint8 or a signed integer"),
    ],
)
def test_model_that_cannot_be_averaged_is_refused(model: nn.Module, problem: str) -> None:
    with pytest.raises(UserError, match=f"^model_args.model: mine:? .*{problem}"):
        own_copy(model, "mine", torch.float32)


class Shifted(nn.Linear):
    in_place = True

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        images = images if self.in_place else images.clone()
        return super().forward(images.sub_(0.5).div_(2))


def test_model_working_in_place_changes_no_data(
    run: Callable[..., object], recipe: Callable[..., Recipe], tmp_path: Path, data: FederatedData
) -> None:
    before = data.test_images.clone(), data.train_images.clone()
    model = nn.Sequential(nn.Flatten(), Shifted(64, 10))
    given = recipe(comm_round=2, epochs=1)
    run(given, tmp_path / "in place", model=model)
    assert torch.equal(data.test_images, before[0])
    assert torch.equal(data.train_images, before[1])
    model[1].in_place = False
    run(given, tmp_path / "copied", model=model)
    one, other = (
        [line["test_loss"] for line in read_records(tmp_path / name)]
        for name in ("in place", "copied")
    )
    assert one == other


def test_model_check_leaves_no_trace(data: FederatedData) -> None:
    model = create_model("nnnn_digits", 0)
    state, before = torch.get_rng_state(), {k: v.clone() for k, v in model.state_dict().items()}
    check_model(model, "nnnn_digits", data, 1)
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("layers", "problem"),
    [
        ((), r"^model_args.model: mine: gives \[1, 64\] for a batch of \[1, 1, 8, 8\], not "),
        (
            (nn.Linear(64, 10), PairInTraining()),
            r"^model_args.model: mine: in training, gives tuple for a batch of \[2, 1, 8, 8\], ",
        ),
        (
            (nn.Linear(63, 10),),
            r"^model_args.model: mine: does not take images of \[1, 8, 8\]: ",
        ),
        (
            (Leaving(),),
            r"^model_args.model: mine: does not take images of \[1, 8, 8\]: SystemExit: 0",
        ),
        (
            (nn.Linear(64, 10), nn.BatchNorm1d(10)),
            "^train_args.batch_size: 6: leaves client 0, which has 7 images, a batch of one image",
        ),
    ],
)
def test_model_that_does_not_take_images_is_refused(
    data: FederatedData, layers: tuple[nn.Module, ...], problem: str
) -> None:
    with pytest.raises(UserError, match=problem):
        check_model(nn.Sequential(nn.Flatten(), *layers), "mine", data, 6)


def test_model_is_checked_in_its_precision(
    run: Callable[..., object], recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    model = nn.Sequential(nn.Flatten(), Single(64, 10))
    with pytest.raises(UserError, match="does not take images"):
        run(recipe(precision="fp64"), tmp_path, model=model)


def test_recipes_readme_has_a_recipe_that_loads(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[2] / "recipes" / "README.md").read_text()
    section = readme.partition("## Your own data\n")[2]
    path = tmp_path / "flowers.yaml"
    path.write_text(section.partition("```yaml\n")[2].partition("```")[0] + REST)
    recipe = load_recipe(path)
    assert recipe.data_args.image_size == (64, 64)
    assert recipe.model_args.model == "resnet18"
