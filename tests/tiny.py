"""A tiny federation: random 8 × 8 images, the digits network, six clients of unequal size."""

import inspect
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import fednnnn_plugin as fp
from fednnnn_plugin.assembly.federation import run_federation
from fednnnn_plugin.assembly.functions import find_functions
from fednnnn_plugin.assembly.inputs import Inputs
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.models import create_model
from fednnnn_plugin.recipe import Recipe, find_recipe, load_recipe
from fednnnn_plugin.recipe.schema import DataArgs
from fednnnn_plugin.rounds.loaders import LoaderData
from fednnnn_plugin.run_folder.records import Evaluation

from .support import commands

SIZES = (7, 12, 5, 30, 9, 16)
_SETTINGS = {"client_num_in_total": len(SIZES), "client_num_per_round": 4, "comm_round": 3}
_SETTINGS |= {"epochs": 1, "batch_size": 5, "learning_rate": 0.05, "checkpoint_every": 1}
Start = Callable[..., fp.Run]
Content = Callable[[Path], object]


def tiny_data() -> FederatedData:
    generator = torch.Generator().manual_seed(0)
    count = sum(SIZES)
    labels = torch.arange(count + 40) % 10
    images = torch.randn(count + 40, 1, 8, 8, generator=generator) + labels.view(-1, 1, 1, 1) / 5
    clients = torch.randperm(count, generator=generator).split(SIZES)
    train, test = (images[:count], labels[:count]), (images[count:], labels[count:])
    return FederatedData(*train, clients, *test, num_classes=10)


def draw() -> float:
    """Draw from every global generator, as a user's code may."""
    return random.random() + np.random.rand() + torch.rand(1).item()  # noqa: NPY002


def read_records(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def tiny_recipe(**settings: Any) -> Recipe:
    """A FedNNNN recipe for the tiny federation."""
    overrides = [f"{key}={json.dumps(value)}" for key, value in (_SETTINGS | settings).items()]
    return load_recipe(find_recipe("digits_noniid_b_fednnnn"), overrides)


class Tiny:
    """Runs the tiny federation in folders of one folder, by name, and reads what they hold."""

    def __init__(self, folder: Path, data: FederatedData) -> None:
        self.folder, self._data = folder, data

    def __call__(self, name: str = "run", **given: Any) -> Any:
        """Run with these inputs, arguments of `run_federation` and settings of the recipe."""
        arguments = {key: given.pop(key) for key in ("mode", "followers") if key in given}
        inputs: dict[str, Any] = {"data": self._data, "device": torch.device("cpu")}
        inputs |= {key: given.pop(key) for key in Inputs._fields if key in given}
        recipe = tiny_recipe(**given)
        inputs.setdefault("functions", find_functions(recipe, custom_trainer="trainer" in inputs))
        inputs.setdefault("model", create_model("nnnn_digits", recipe.common_args.random_seed))
        if isinstance(inputs["data"], LoaderData):  # a script's own, not the recipe's
            defaults = DataArgs.model_construct(dataset="digits")
            recipe = recipe.model_copy(update={"data_args": defaults})
        return run_federation(recipe, lambda: Inputs(**inputs), self.folder / name, **arguments)

    def records(self, name: str = "run") -> list[dict[str, Any]]:
        return read_records(self.folder / name)

    def log(self, name: str = "run") -> str:
        return (self.folder / name / "fedml.log").read_text()

    def model(self, name: str = "run") -> dict[str, Tensor]:
        return load_file(self.folder / name / "model.safetensors")


OWN = Path(__file__).with_name("own.py").read_text()


def cell(*edit: str) -> dict[str, Any]:
    """What a notebook's cell with the code of ``own.py`` defines, run again after an edit."""
    assert not edit or edit[0] in OWN
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(OWN.replace(*edit) if edit else OWN, namespace)
    return namespace


CELL = cell()
NET, HOSPITALS, DATA = CELL["Net"], CELL["hospitals"], CELL["tensors"]()
X, Y, *TEST = DATA
PARTS = [*zip(X.split((30, 50, 20, 40)), Y.split((30, 50, 20, 40)), strict=True)]

#: Settings for ``fp.run`` of a recipe that comes with the package. One worker trains without forks.
QUICK = commands.QUICK | {"comm_round": 2, "worker_num": 1}


def quick_run(output: Path | str, recipe: str = commands.RECIPE, **given: Any) -> fp.Run:
    """Run a recipe with these arguments of ``fp.run`` and settings."""
    names = inspect.signature(fp.run).parameters.keys() & given.keys()
    arguments = {name: given.pop(name) for name in names}
    return fp.run(recipe, output=output, overrides=QUICK | given, **arguments)


def follower(**calls: Callable[..., object]) -> fp.Follower:
    """A follower that calls these functions."""
    made = fp.Follower()
    vars(made).update(calls)
    return made


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

    def test(self, state: Any, round_number: int) -> Evaluation:
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
