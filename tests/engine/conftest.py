"""A tiny federation: random 8 × 8 images, the digits network, six clients of unequal size."""

import inspect
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import fednnnn_plugin as fp
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.engine.batches import LoaderData
from fednnnn_plugin.engine.evaluation import Evaluation
from fednnnn_plugin.engine.records import Summary
from fednnnn_plugin.engine.run import run_federation
from fednnnn_plugin.engine.training import Inputs
from fednnnn_plugin.models import create_model
from fednnnn_plugin.recipe import Recipe, find_recipe, load_recipe
from fednnnn_plugin.recipe.schema import DataArgs

SIZES = (7, 12, 5, 30, 9, 16)
_SETTINGS = {"client_num_in_total": len(SIZES), "client_num_per_round": 4, "comm_round": 3}
_SETTINGS |= {"epochs": 1, "batch_size": 5, "learning_rate": 0.05, "checkpoint_every": 1}
Call = Callable[..., Any]


@pytest.fixture(scope="session")
def data() -> FederatedData:
    generator = torch.Generator().manual_seed(0)
    count = sum(SIZES)
    labels = torch.arange(count + 40) % 10
    images = torch.randn(count + 40, 1, 8, 8, generator=generator) + labels.view(-1, 1, 1, 1) / 5
    clients = torch.randperm(count, generator=generator).split(SIZES)
    train, test = (images[:count], labels[:count]), (images[count:], labels[count:])
    return FederatedData(*train, clients, *test, num_classes=10)


@pytest.fixture(scope="session")
def recipe() -> Call:
    """Make a FedNNNN recipe for the tiny federation."""

    def make(**settings: Any) -> Recipe:
        overrides = [f"{key}={json.dumps(v)}" for key, v in (_SETTINGS | settings).items()]
        return load_recipe(find_recipe("digits_noniid_b_fednnnn"), overrides)

    return make


@pytest.fixture(scope="session")
def run(data: FederatedData) -> Call:
    """Run a recipe on the tiny federation in a folder."""

    def start(recipe: Recipe, folder: Path, **arguments: Any) -> Summary | None:
        model = create_model("nnnn_digits", recipe.common_args.random_seed)
        given: dict[str, Any] = {"model": model, "data": data, "device": torch.device("cpu")}
        given |= {key: arguments.pop(key) for key in Inputs._fields if key in arguments}
        return run_federation(recipe, lambda: Inputs(**given), folder, **arguments)

    return start


def draw() -> float:
    """Draw from every global generator, as a user's code may."""
    return random.random() + np.random.rand() + torch.rand(1).item()  # noqa: NPY002


def read_records(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="session")
def records() -> Call:
    """Read a run folder's ``metrics.jsonl``."""
    return read_records


class Tiny:
    """Runs the tiny federation in folders of one folder, by name, and reads what they hold."""

    def __init__(self, folder: Path, run: Call, recipe: Call) -> None:
        self.folder, self._run, self._recipe = folder, run, recipe

    def __call__(self, name: str = "run", **given: Any) -> Any:
        """Run with these inputs, arguments of `run_federation` and settings of the recipe."""
        names = {*Inputs._fields, "mode", "ranks", "followers"}
        arguments = {key: given.pop(key) for key in names & given.keys()}
        recipe = self._recipe(**given)
        if isinstance(arguments.get("data"), LoaderData):  # a script's own, not the recipe's
            defaults = DataArgs.model_construct(dataset="digits")
            recipe = recipe.model_copy(update={"data_args": defaults})
        return self._run(recipe, self.folder / name, **arguments)

    def records(self, name: str = "run") -> list[dict[str, Any]]:
        return read_records(self.folder / name)

    def log(self, name: str = "run") -> str:
        return (self.folder / name / "fedml.log").read_text()

    def model(self, name: str = "run") -> dict[str, Tensor]:
        return load_file(self.folder / name / "model.safetensors")


@pytest.fixture
def tiny(tmp_path: Path, run: Call, recipe: Call) -> Tiny:
    return Tiny(tmp_path, run, recipe)


OWN = Path(__file__).with_name("own.py").read_text()


def cell(*edit: str) -> dict[str, Any]:
    """What a notebook's cell with the code of ``own.py`` defines, run again after an edit."""
    assert not edit or edit[0] in OWN
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(OWN.replace(*edit) if edit else OWN, namespace)
    return namespace


#: Settings for ``fp.run`` of a recipe that comes with the package.
QUICK: dict[str, Any] = {"comm_round": 2, "epochs": 1, "client_num_per_round": 3}
QUICK |= {"checkpoint_every": 1, "using_gpu": False}


def quick_run(output: Path | str, recipe: str = "digits_noniid_b_fednnnn", **given: Any) -> fp.Run:
    """Run a recipe with these arguments of ``fp.run`` and settings."""
    names = inspect.signature(fp.run).parameters.keys() & given.keys()
    arguments = {name: given.pop(name) for name in names}
    return fp.run(recipe, output=output, overrides=QUICK | given, **arguments)


@pytest.fixture
def start(own_code: Path) -> Call:
    """Run as `quick_run` does, in a folder with ``own.py``."""
    (own_code / "own.py").write_text(OWN)
    return quick_run


class Drawing:
    """A user's own training, which draws from everything; one client may fail in round 2."""

    def __init__(self, *, fails: bool = False) -> None:
        self._fails = fails
        self.threads: set[int] = set()

    def train(self, client: int, state: Any, round_number: int) -> Any:
        self.threads.add(torch.get_num_threads())
        shift = draw() * 1e-3
        if self._fails and (round_number, client) == (2, 1):
            raise ZeroDivisionError("no samples")
        return {name: tensor + shift for name, tensor in state.items()}

    def test(self, state: Any) -> Evaluation:
        """What is no accuracy, as of a regression."""
        self.threads.add(torch.get_num_threads())
        return Evaluation(None, None, {"mse": draw()})


class Doing(nn.Module):
    """A layer that calls a function with itself and its inputs."""

    def __init__(self, call: Callable[["Doing", Tensor], Any]) -> None:
        super().__init__()
        self.call = call

    def forward(self, inputs: Tensor) -> Any:
        return self.call(self, inputs)
