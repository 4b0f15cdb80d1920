"""A whole run, in process: what it records, and what its bits may depend on."""

import math
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

MakeRecipe = Callable[..., Any]
Run = Callable[..., Any]
Records = Callable[..., list[dict[str, Any]]]


def accuracy(folder: Path, data: FederatedData, state: dict[str, Tensor]) -> float:
    model = create_model("nnnn_digits", 99)
    model.load_state_dict(state)
    model.eval()
    with torch.no_grad():
        found = model(data.test_images).argmax(1)
    return (found == data.test_labels).double().mean().item()


def newest(folder: Path) -> dict[str, Tensor]:
    return safetensors.torch.load_file(max((folder / "checkpoint").iterdir()))


def test_the_average_is_reported_and_saved_and_the_served_model_only_served(
    run: Run, recipe: MakeRecipe, records: Records, data: FederatedData, tmp_path: Path
) -> None:
    given = recipe(**{"validation_args.test_served": True})
    assert run(given).rounds == 3
    folder, last = tmp_path / "run", records()[-1]
    files = {"recipe.yaml", "metrics.jsonl", "summary.json", "model.safetensors", "checkpoint"}
    assert {path.name for path in folder.iterdir()} - {".lock"} == files | {"fedml.log"}
    assert load_recipe(folder / "recipe.yaml").train_args == given.train_args
    evaluated = safetensors.torch.load_file(folder / "model.safetensors")
    served = {k: v for k, v in newest(folder).items() if k in evaluated}
    assert last["test_acc"] == accuracy(folder, data, evaluated)
    assert last["served_test_acc"] == accuracy(folder, data, served)
    assert not torch.equal(evaluated["fc2.weight"], served["fc2.weight"])


def test_the_records_of_a_round_fit_together(
    run: Run, recipe: MakeRecipe, records: Records
) -> None:
    run(recipe())
    integrated = 0.0
    for record in records():
        assert record["layers"].keys() == {"conv1", "conv2", "fc1", "fc2"}
        for norm in ("mean_update_norm", "server_update_norm"):
            squares = sum(layer[norm] ** 2 for layer in record["layers"].values())
            assert math.sqrt(squares) == pytest.approx(record[norm], rel=1e-12)
        for norms in (record, *record["layers"].values()):
            assert 0 < norms["mean_update_norm"] <= norms["mean_client_norm"]
        low, middle, high = record["client_norms"]
        assert low <= middle <= high
        assert low <= record["mean_client_norm"] <= high
        integrated += record["server_update_norm"]
        assert record["integrated_norm"] == pytest.approx(integrated, rel=1e-12)
        assert (record["clients"], record["rejected"], record["degenerate"]) == (4, 0, False)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_workers_change_no_byte(
    run: Run, recipe: MakeRecipe, tmp_path: Path, precision: str
) -> None:
    models = []
    for workers in (1, 2):
        folder = tmp_path / str(workers)
        run(recipe(precision=precision, **{"device_args.worker_num": workers}), folder)
        models.append((folder / "model.safetensors").read_bytes())
    assert models[0] == models[1]


def test_the_seed_changes_the_run_and_nothing_else_does(
    run: Run, recipe: MakeRecipe, tmp_path: Path
) -> None:
    """The caller's model is the same after as before."""
    model, models = create_model("nnnn_digits", 0), []
    for number, seed in enumerate((0, 0, 1)):
        folder = tmp_path / str(number)
        run(recipe(**{"common_args.random_seed": seed}), folder, model=model)
        models.append((folder / "model.safetensors").read_bytes())
    assert models[0] == models[1] != models[2]
    for weight, before in zip(
        model.parameters(), create_model("nnnn_digits", 0).parameters(), strict=True
    ):
        assert torch.equal(weight, before)


class _Foreign(nn.Module):
    """A model that is not ours: dropout, a draw of Python's, batch norm and a tied layer."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(64)
        self.first = nn.Linear(64, 64, bias=False)
        self.second = nn.Linear(64, 64, bias=False)
        self.second.weight = self.first.weight
        self.last = nn.Linear(64, 10)
        self._draw = draw

    def forward(self, inputs: Tensor) -> Tensor:
        x = F.dropout(self.norm(inputs.flatten(1)), 0.3, self.training)
        return self.last(self.second(F.relu(self.first(x)))) * (1 + self._draw() / 10)


class _Shuffling:
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
        {k: _Shuffling(*data.client_data(k)) for k in clients},
        {k: data.client_size(k) for k in clients},
        _Shuffling(data.test_images, data.test_labels),
        10,
    )


def test_a_client_without_samples_cannot_weigh_by_them(
    run: Run, recipe: MakeRecipe, loaders: LoaderData, tmp_path: Path
) -> None:
    empty = replace(loaders, sizes={**loaders.sizes, 3: 0})
    with pytest.raises(UserError, match=r"^train_args\.client_weighting: samples: client 3 "):
        run(recipe(client_weighting="samples"), tmp_path / "run", data=empty)


def test_more_clients_than_add_up_exactly_are_refused_before_they_train(
    run: Run, recipe: MakeRecipe, tmp_path: Path
) -> None:
    many = range(32_768)
    data = LoaderData(dict.fromkeys(many, ()), dict.fromkeys(many, 1), (), 10)
    settings = {"client_num_in_total": len(many), "client_num_per_round": len(many)}
    with pytest.raises(UserError, match=r"^train_args\.client_num_per_round: 32768: "):
        run(recipe(**settings), tmp_path / "run", data=data)


class _Trainer:
    """A user's own training, which draws and sets thread counts and modes as it likes."""

    def __init__(self, draw: Callable[[], float]) -> None:
        self._draw = draw
        self.threads: list[int] = []

    def train(self, client: int, state: State, round_number: int) -> State:
        self.threads.append(torch.get_num_threads())
        return {name: tensor + self._draw() * 1e-3 for name, tensor in state.items()}

    def test(self, state: State) -> Evaluation:
        self.threads.append(torch.get_num_threads())
        return Evaluation(self._draw() / 3, None)


@pytest.mark.parametrize("users", ["model and loaders", "trainer"])
def test_what_is_the_users_repeats_its_bits_and_leaves_no_trace(
    run: Run,
    recipe: MakeRecipe,
    records: Records,
    loaders: LoaderData,
    draw: Callable[[], float],
    global_state: Callable[[], tuple[object, ...]],
    tmp_path: Path,
    users: str,
) -> None:
    model, trainer = _Foreign(draw), _Trainer(draw)
    own = {"trainer": trainer} if users == "trainer" else {"model": model, "data": loaders}
    for name in ("one", "two"):
        draw()
        before = global_state()
        run(recipe(), tmp_path / name, **own)
        assert global_state() == before
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two
    for key in ("test_acc", "test_loss"):
        first, second = ([r[key] for r in records(tmp_path / name)] for name in ("one", "two"))
        assert first == second
    assert set(trainer.threads) <= {1}
    if users != "trainer":
        restored = _Foreign(draw)
        restored.load_state_dict(safetensors.torch.load(one))
        assert torch.equal(restored.first.weight, restored.second.weight)
        assert not torch.equal(restored.first.weight, model.first.weight)


class _Measuring(_Trainer):
    """Measures what is no accuracy, as a regression does."""

    def test(self, state: State) -> Evaluation:
        return Evaluation(None, None, {"mse": 0.25})


def test_what_a_users_trainer_measures_is_recorded_and_resumed(
    run: Run, recipe: MakeRecipe, records: Records, draw: Callable[[], float]
) -> None:
    summary = run(recipe(comm_round=2), trainer=_Measuring(draw))
    assert (summary.best_test_acc, summary.best_round, summary.final_test_acc) == (None,) * 3
    run(recipe(comm_round=3), trainer=_Measuring(draw), mode="resume")
    assert [r["test_metrics"] for r in records()] == [{"mse": 0.25}] * 3
    assert [r["test_acc"] for r in records()] == [None] * 3


def test_a_full_batch_is_all_of_a_client(run: Run, recipe: MakeRecipe, tmp_path: Path) -> None:
    """The largest client has 30 images."""
    for size in (-1, 30):
        run(recipe(batch_size=size, comm_round=1), tmp_path / str(size))
    full, thirty = (tmp_path / str(size) / "model.safetensors" for size in (-1, 30))
    assert full.read_bytes() == thirty.read_bytes()
