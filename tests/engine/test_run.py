"""A whole run, in process: what it records, and what its bits may depend on."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.engine.batches import LoaderData
from fednnnn_plugin.engine.evaluation import Evaluation
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.models import create_model
from fednnnn_plugin.recipe import load_recipe
from fednnnn_plugin.server.layout import State

from .conftest import draw

Run = Callable[..., Any]


def accuracy(data: FederatedData, state: dict[str, Tensor]) -> float:
    model = create_model("nnnn_digits", 99).eval()
    model.load_state_dict(state)
    with torch.no_grad():
        found = model(data.test_images).argmax(1)
    return (found == data.test_labels).double().mean().item()


def test_run_reports_and_saves_the_average(
    run: Run, recipe: Run, records: Run, data: FederatedData, tmp_path: Path
) -> None:
    given = recipe(**{"validation_args.test_served": True})
    folder = tmp_path / "run"
    assert run(given, folder).rounds == 3
    last = records(folder)[-1]
    files = {"recipe.yaml", "metrics.jsonl", "summary.json", "model.safetensors", "checkpoint"}
    assert {path.name for path in folder.iterdir()} - {".lock"} == files | {"fedml.log"}
    assert load_recipe(folder / "recipe.yaml").train_args == given.train_args
    evaluated = safetensors.torch.load_file(folder / "model.safetensors")
    kept = safetensors.torch.load_file(max((folder / "checkpoint").iterdir()))
    served = {name: kept[name] for name in evaluated}
    assert last["test_acc"] == accuracy(data, evaluated)
    assert last["served_test_acc"] == accuracy(data, served)
    assert not torch.equal(evaluated["fc2.weight"], served["fc2.weight"])


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({}, {}, True),
        ({}, {"common_args.random_seed": 1}, False),
        ({"device_args.worker_num": 1}, {"device_args.worker_num": 2}, True),
        ({"batch_size": -1}, {"batch_size": 30}, True),  # all of the largest client
    ],
)
def test_run_bits_depend_on_the_seed_alone(
    run: Run, recipe: Run, tmp_path: Path, one: dict, other: dict, same: bool
) -> None:
    """The caller's model is left as it was."""
    model, models = create_model("nnnn_digits", 0), []
    for number, settings in enumerate((one, other)):
        folder = tmp_path / str(number)
        run(recipe(comm_round=2, **settings), folder, model=model)
        models.append((folder / "model.safetensors").read_bytes())
    assert (models[0] == models[1]) is same
    before = create_model("nnnn_digits", 0).state_dict()
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


class Foreign(nn.Module):
    """A model that is not ours: dropout, a draw of Python's, batch norm and a tied layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(64)
        self.first = nn.Linear(64, 64, bias=False)
        self.second = nn.Linear(64, 64, bias=False)
        self.second.weight = self.first.weight
        self.last = nn.Linear(64, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        x = F.dropout(self.norm(inputs.flatten(1)), 0.3, self.training)
        return self.last(self.second(F.relu(self.first(x)))) * (1 + draw() / 10)


class Shuffling:
    """A user's loader that shuffles by torch's global generator."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self._images, self._labels = images, labels

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for picked in torch.randperm(len(self._labels)).split(7):
            yield self._images[picked], self._labels[picked]


@pytest.fixture
def loaders(data: FederatedData) -> LoaderData:
    clients = range(data.num_clients)
    return LoaderData(
        {k: Shuffling(*data.client_data(k)) for k in clients},
        {k: data.client_size(k) for k in clients},
        Shuffling(data.test_images, data.test_labels),
        10,
    )


class Trainer:
    """A user's own training, which draws."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    def train(self, client: int, state: State, round_number: int) -> State:
        self.threads.append(torch.get_num_threads())
        return {name: tensor + draw() * 1e-3 for name, tensor in state.items()}

    def test(self, state: State) -> Evaluation:
        self.threads.append(torch.get_num_threads())
        return Evaluation(draw() / 3, None)


@pytest.mark.parametrize("users", ["model and loaders", "trainer"])
def test_users_code_repeats_its_bits(
    run: Run, recipe: Run, content: Run, loaders: LoaderData, tmp_path: Path, users: str
) -> None:
    model, trainer = Foreign(), Trainer()
    own = {"trainer": trainer} if users == "trainer" else {"model": model, "data": loaders}
    for name in ("one", "two"):
        draw()
        before = random.getstate(), torch.get_rng_state().tolist()
        run(recipe(comm_round=2, epochs=1), tmp_path / name, **own)
        assert (random.getstate(), torch.get_rng_state().tolist()) == before
    assert content(tmp_path / "one") == content(tmp_path / "two")
    assert set(trainer.threads) <= {1}
    if users != "trainer":
        restored = Foreign()
        restored.load_state_dict(
            safetensors.torch.load_file(tmp_path / "one" / "model.safetensors")
        )
        assert torch.equal(restored.first.weight, restored.second.weight)
        assert not torch.equal(restored.first.weight, model.first.weight)


def test_trainer_metrics_are_recorded_and_resumed(
    run: Run, recipe: Run, records: Run, tmp_path: Path
) -> None:
    """What is no accuracy, as of a regression."""

    class Measuring(Trainer):
        def test(self, state: State) -> Evaluation:
            return Evaluation(None, None, {"mse": 0.25})

    summary = run(recipe(comm_round=2), tmp_path, trainer=Measuring())
    assert (summary.best_test_acc, summary.best_round, summary.final_test_acc) == (None,) * 3
    run(recipe(comm_round=3), tmp_path, trainer=Measuring(), mode="resume")
    measured = [(record["test_metrics"], record["test_acc"]) for record in records(tmp_path)]
    assert measured == [({"mse": 0.25}, None)] * 3


def test_settings_that_do_not_fit_data_are_refused(
    run: Run, recipe: Run, loaders: LoaderData, tmp_path: Path
) -> None:
    empty = replace(loaders, sizes={**loaders.sizes, 3: 0})
    with pytest.raises(UserError, match=r"^train_args\.client_weighting: samples: client 3 "):
        run(recipe(client_weighting="samples"), tmp_path, data=empty)
    many = range(32_768)  # more clients than add up exactly
    data = LoaderData(dict.fromkeys(many, ()), dict.fromkeys(many, 1), (), 10)
    settings = {"client_num_in_total": len(many), "client_num_per_round": len(many)}
    with pytest.raises(UserError, match=r"^train_args\.client_num_per_round: 32768: "):
        run(recipe(**settings), tmp_path, data=data)
