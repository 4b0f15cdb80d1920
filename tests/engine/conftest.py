"""A tiny federation: random 8 × 8 images, the digits network, six clients of unequal size."""

import inspect
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
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
from fednnnn_plugin.engine.records import LayerRecord, RoundRecord, Seconds, Summary
from fednnnn_plugin.engine.run import run_federation
from fednnnn_plugin.engine.training import Inputs
from fednnnn_plugin.models import create_model
from fednnnn_plugin.recipe import Recipe, find_recipe, load_recipe
from fednnnn_plugin.recipe.schema import DataArgs
from fednnnn_plugin.server.layout import State

SIZES = (7, 12, 5, 30, 9, 16)
_SETTINGS = {
    "client_num_in_total": len(SIZES),
    "client_num_per_round": 4,
    "comm_round": 3,
    "epochs": 1,
    "batch_size": 5,
    "learning_rate": 0.05,
    "checkpoint_every": 1,
}

MakeRecipe = Callable[..., Recipe]
Run = Callable[..., Summary | None]


@pytest.fixture(scope="session")
def data() -> FederatedData:
    generator = torch.Generator().manual_seed(0)
    count = sum(SIZES)
    labels = torch.arange(count + 40) % 10
    images = torch.randn(count + 40, 1, 8, 8, generator=generator) + labels.view(-1, 1, 1, 1) / 5
    return FederatedData(
        train_images=images[:count],
        train_labels=labels[:count],
        client_indices=torch.randperm(count, generator=generator).split(SIZES),
        test_images=images[count:],
        test_labels=labels[count:],
        num_classes=10,
    )


@pytest.fixture(scope="session")
def recipe() -> MakeRecipe:
    """Make a FedNNNN recipe for the tiny federation."""

    def make(**settings: Any) -> Recipe:
        given = (_SETTINGS | settings).items()
        overrides = [f"{key}={json.dumps(value)}" for key, value in given]
        return load_recipe(find_recipe("digits_noniid_b_fednnnn"), overrides)

    return make


@pytest.fixture(scope="session")
def run(data: FederatedData) -> Run:
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
def records() -> Callable[[Path], list[dict[str, Any]]]:
    """Read a run folder's ``metrics.jsonl``."""
    return read_records


class Tiny:
    """Runs the tiny federation in folders of one folder, by name, and reads what they hold."""

    def __init__(self, folder: Path, run: Run, recipe: MakeRecipe) -> None:
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
def tiny(tmp_path: Path, run: Run, recipe: MakeRecipe) -> Tiny:
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
def start(own_code: Path) -> Callable[..., fp.Run]:
    """Run as `quick_run` does, in a folder with ``own.py``."""
    (own_code / "own.py").write_text(OWN)
    return quick_run


@pytest.fixture(scope="session")
def make_record() -> Callable[..., RoundRecord]:
    """Make a round's record; keywords replace its fields."""
    usual = RoundRecord(
        round=1,
        evaluated="average",
        test_acc=0.5,
        test_loss=None,
        test_metrics=None,
        served_test_acc=None,
        mean_update_norm=1.0,
        mean_client_norm=4.0,
        orthogonal_norm=2.0,
        server_update_norm=2.0,
        integrated_norm=2.0,
        client_norms=(3.0, 4.0, 5.0),
        layers={"fc": LayerRecord(1.0, 4.0, 2.0)},
        clients=4,
        rejected=0,
        degenerate=False,
        seconds=Seconds(train=20.0, aggregate=1.0, evaluate=0.25),
    )
    return lambda number, **fields: replace(
        usual, round=number, integrated_norm=2.0 * number, **fields
    )


class Two(nn.Module):
    """w_0 = (1, 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, 2.0]))


class Told:
    """Clients that add what they are told to the served model; keeps what it is asked to test."""

    def __init__(self, updates: Callable[[int], tuple[Any, ...]], test: Any = None) -> None:
        self._updates, self._test = updates, test
        self.tested: list[list[float]] = []

    def train(self, client: int, state: State, round_number: int) -> State:
        update = self._updates(round_number)[client]
        if isinstance(update, BaseException):
            raise update
        if isinstance(update, Mapping):
            return update
        return {"w": state["w"] + torch.tensor(update)}

    def test(self, state: State) -> Evaluation | None:
        self.tested.append(state["w"].tolist())
        told = self._test(len(self.tested)) if self._test else None
        return told or Evaluation(len(self.tested) / 100, 0.5)


class Doing(nn.Module):
    """A layer that calls a function with itself and its inputs."""

    def __init__(self, call: Callable[["Doing", Tensor], Any]) -> None:
        super().__init__()
        self.call = call

    def forward(self, inputs: Tensor) -> Any:
        return self.call(self, inputs)


class Example(Tiny):
    """Runs FedNNNN with β = γ = ½ on two parameters.

    ``hand`` are two clients' updates: S = (12, 16), N = 20, E = 25.
    """

    hand = ((0.0, 25.0), (24.0, 7.0))

    def follow(self, trainer: Told, name: str = "run", **given: Any) -> Any:
        """Run; clients have 1, 3, 3, … samples."""
        clients = given.pop("clients", 2)
        settings = {"beta": 0.5, "gamma": 0.5, "comm_round": 2}
        settings |= {"client_num_in_total": clients, "client_num_per_round": clients}
        sizes = {k: 3 if k else 1 for k in range(clients)}
        data = LoaderData(dict.fromkeys(sizes, ()), sizes, (), 2)
        return self(name, model=Two(), data=data, trainer=trainer, **settings | given)

    def every_round(self, *updates: Any, test: Callable[[int], Any] | None = None) -> Told:
        """Clients that do the same each round; ``hand`` by default. ``test`` gets 1, 2, …"""
        return Told(lambda _: updates or self.hand, test)

    def in_round(self, number: int, *updates: Any) -> Told:
        """Clients that do so in one round, and ``hand`` in the others."""
        return Told(lambda now: updates if now == number else self.hand)

    def served(self, name: str = "run") -> dict[str, list[float]]:
        """The newest checkpoint's tensors."""
        newest = max((self.folder / name / "checkpoint").iterdir())
        return {key: tensor.tolist() for key, tensor in load_file(newest).items()}

    def evaluation(self, name: str = "run") -> list[float]:
        """The saved model."""
        return self.model(name)["w"].tolist()


@pytest.fixture
def example(tmp_path: Path, run: Run, recipe: MakeRecipe) -> Example:
    return Example(tmp_path, run, recipe)
