"""Runs on a user's own images and tensors, and with models of torchvision."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from PIL import Image
from torch import nn

from fednnnn_plugin.cli import main
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.engine.model_check import check_model
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.models import create_model
from fednnnn_plugin.recipe import load_recipe

RECIPE = """\
common_args: {{training_type: simulation}}
data_args: {{data_cache_dir: cache, partition_method: n_class, classes_per_client: 2, {data}}}
model_args: {{model: {model}}}
train_args:
  {{federated_optimizer: FedNNNN, beta: 0.7, gamma: 0.8, client_num_in_total: 2, comm_round: 2,
   client_num_per_round: 2, epochs: 1, batch_size: 6, learning_rate: 0.01, checkpoint_every: 1}}
validation_args: {{frequency_of_the_test: 1}}
device_args: {{using_gpu: false}}
comm_args: {{backend: sp}}
tracking_args: {{enable_wandb: false}}
"""
IMAGES = "dataset: image_folder, data_dir: images"
FUNCTION = """
import torch
from torch import nn

def load():
    labels = torch.arange(48) % 3
    images = torch.randn(48, 3, 8, 8) + labels[:, None, None, None]
    return images[:36], labels[:36], images[36:], labels[36:]

def create():
    return nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(192, 3))
"""
OWN_MODEL = ("--set", "model_args.model=own_tensors:create", "--allow-code")
Fednnnn = Callable[..., Result]


@pytest.fixture
def fednnnn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fednnnn:
    """Run a command in a folder with images, a module and the recipes of both."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for part, count in (("train", 12), ("test", 4)):
        for label, name in enumerate(("ant", "bee", "cow")):
            folder = tmp_path / "images" / part / name
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 90, (32, 32, 3)) + 80 * label
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i}.png")
    (tmp_path / "own_tensors.py").write_text(FUNCTION)
    recipes = {"images": IMAGES, "tensors": "dataset: 'own_tensors:load'"}
    for name, data in recipes.items():
        (tmp_path / f"{name}.yaml").write_text(RECIPE.format(data=data, model="resnet18"))

    def call(*arguments: str) -> Result:
        return CliRunner().invoke(main, arguments, catch_exceptions=False)

    yield call
    sys.modules.pop("own_tensors", None)


def model_of(folder: str) -> bytes:
    return Path(folder, "model.safetensors").read_bytes()


@pytest.mark.slow
def test_resnet18_on_an_image_folder(fednnnn: Fednnnn) -> None:
    ended = fednnnn("run", "images.yaml", "--output", "a")
    assert ended.exit_code == 0, ended.stderr
    assert "after 2 rounds" in ended.stdout
    again = fednnnn("run", "images.yaml", "--set", "train_args.comm_round=1", "--output", "b")
    assert again.exit_code == 0
    assert fednnnn("run", "images.yaml", "--output", "b", "--resume").exit_code == 0
    assert model_of("a") == model_of("b")
    assert fednnnn("report", "a").exit_code == 0


def test_a_function_s_tensors_with_a_model_that_draws(fednnnn: Fednnnn) -> None:
    """Dropout: each client draws its own, the same after a stop."""
    own = ("tensors.yaml", *OWN_MODEL)
    ended = fednnnn("run", *own, "--output", "a")
    assert ended.exit_code == 0, ended.stderr
    assert fednnnn("run", *own, "--output", "b", "--set", "train_args.comm_round=1").exit_code == 0
    assert fednnnn("run", *own, "--output", "b", "--resume").exit_code == 0
    assert model_of("a") == model_of("b")


TOKENS = """
import numpy as np
from torch import nn

def load():
    tokens = np.random.default_rng(0).integers(0, 9, size=(48, 5))
    return tokens[:36], np.arange(36) % 3, tokens[36:], np.arange(12) % 3

def create():
    return nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(20, 3))
"""


def test_tokens_stay_integers(fednnnn: Fednnnn, tmp_path: Path) -> None:
    (tmp_path / "own_tensors.py").write_text(TOKENS)
    ended = fednnnn("run", "tensors.yaml", *OWN_MODEL, "--output", "a")
    assert ended.exit_code == 0, ended.stderr


def test_a_run_s_folder_is_read_without_its_code(fednnnn: Fednnnn, tmp_path: Path) -> None:
    assert fednnnn("run", "tensors.yaml", *OWN_MODEL, "--output", "a").exit_code == 0
    sys.modules.pop("own_tensors")
    (tmp_path / "own_tensors.py").write_text("open('was-here', 'w')")
    assert fednnnn("report", "a").exit_code == 0
    more = (*OWN_MODEL[:2], "--output", "a", "--set", "train_args.comm_round=3")
    ended = fednnnn("run", "tensors.yaml", *more, "--resume")
    assert (ended.exit_code, ended.stderr.count("\n")) == (2, 1)
    assert not (tmp_path / "was-here").exists()


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ("nnnn_mnist", "does not take images of [3, 32, 32]: Given groups=1, weight of size"),
        ("alexnet", "does not take images of [3, 32, 32]: "),
    ],
)
def test_a_model_that_does_not_take_the_images(
    fednnnn: Fednnnn, tmp_path: Path, model: str, problem: str
) -> None:
    ended = fednnnn("run", "images.yaml", "--set", f"model_args.model={model}")
    assert ended.exit_code == 2
    assert ended.stderr.startswith(f"model_args.model: {model}: {problem}")
    assert ended.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_digits_with_resnet18_and_a_batch_of_one(fednnnn: Fednnnn) -> None:
    ended = fednnnn("run", "digits_noniid_b_fednnnn", "--set", "model_args.model=resnet18")
    assert ended.exit_code == 2
    line = ended.stderr.splitlines()[-1]
    assert line.startswith("model_args.model: resnet18: does not take images of [1, 8, 8]")
    ended = fednnnn("run", "images.yaml", "--set", "train_args.batch_size=17")
    assert ended.exit_code == 2
    assert ended.stderr.startswith(
        "train_args.batch_size: 17: leaves client 0, which has 18 images, a batch of one image, on "
        "which resnet18 cannot train ("
    )


def test_the_check_leaves_model_and_generators_as_they_were(data: FederatedData) -> None:
    model = create_model("nnnn_digits", 0)
    state, before = torch.get_rng_state(), {k: v.clone() for k, v in model.state_dict().items()}
    check_model(model, "nnnn_digits", data, 1)
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    with pytest.raises(UserError, match=r"^model_args.model: flat: gives \[1, 64\] for an image"):
        check_model(nn.Flatten(), "flat", data, 5)


def test_the_readme_s_recipe_is_one(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[2] / "recipes" / "README.md").read_text()
    section = readme.partition("## Your own data\n")[2]
    path = tmp_path / "flowers.yaml"
    rest = [
        line
        for line in RECIPE.format(data="", model="").splitlines(keepends=True)
        if not line.startswith(("data_args", "model_args"))
    ]
    path.write_text(section.partition("```yaml\n")[2].partition("```")[0] + "".join(rest))
    recipe = load_recipe(path)
    assert recipe.data_args.image_size == (64, 64)
    assert recipe.model_args.model == "resnet18"
