"""A whole run, in process: what it records, and what its bits may depend on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.engine.batches import LoaderData
from fednnnn_plugin.engine.evaluation import Evaluation
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.models import create_model
from fednnnn_plugin.recipe import load_recipe
from fednnnn_plugin.server.layout import State

from .conftest import Tiny, draw


def accuracy(data: FederatedData, state: dict[str, Tensor]) -> float:
    model = create_model("nnnn_digits", 99).eval()
    model.load_state_dict(state)
    with torch.no_grad():
        found = model(data.test_images).argmax(1)
    return (found == data.test_labels).double().mean().item()


def test_run_reports_and_saves_the_average(tiny: Tiny, data: FederatedData, tmp_path: Path) -> None:
    summary, folder = tiny(test_served=True, worker_num=1), tmp_path / "run"
    assert (summary.rounds, summary.workers) == (3, 1)
    last = tiny.records()[-1]
    files = {"recipe.yaml", "metrics.jsonl", "summary.json", "model.safetensors", "checkpoint"}
    assert {path.name for path in folder.iterdir()} - {".lock"} == files | {"fedml.log"}
    assert load_recipe(folder / "recipe.yaml").validation_args.test_served
    evaluated = tiny.model()
    kept = load_file(max((folder / "checkpoint").iterdir()))
    served = {name: kept[name] for name in evaluated}
    assert last["test_acc"] == accuracy(data, evaluated)
    assert last["served_test_acc"] == accuracy(data, served)
    assert not torch.equal(evaluated["fc2.weight"], served["fc2.weight"])


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({}, {"random_seed": 1}, False),
        ({"worker_num": 1}, {"worker_num": 2}, True),
        ({"batch_size": -1}, {"batch_size": 30}, True),  # all of the largest client
    ],
)
def test_run_bits_depend_on_the_seed_alone(tiny: Tiny, one: Any, other: Any, same: bool) -> None:
    """The caller's model is left as it was."""
    model = create_model("nnnn_digits", 0)
    for name, settings in (("one", one), ("other", other)):
        tiny(name, comm_round=2, model=model, **settings)
    bits = [
        torch.cat([tensor.flatten() for tensor in tiny.model(name).values()])
        for name in ("one", "other")
    ]
    assert torch.equal(*bits) is same
    before = create_model("nnnn_digits", 0).state_dict()
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


class Trainer:
    """A user's own training, which draws."""

    def __init__(self) -> None:
        self.threads: set[int] = set()

    def train(self, client: int, state: State, round_number: int) -> State:
        self.threads.add(torch.get_num_threads())
        return {name: tensor + draw() * 1e-3 for name, tensor in state.items()}

    def test(self, state: State) -> Evaluation:
        """What is no accuracy, as of a regression."""
        self.threads.add(torch.get_num_threads())
        return Evaluation(None, None, {"mse": draw()})


def test_trainer_repeats_its_bits_and_metrics(
    tiny: Tiny, content: Callable[[Path], object], tmp_path: Path
) -> None:
    trainer = Trainer()
    summary = tiny("whole", trainer=trainer)
    assert (summary.best_test_acc, summary.best_round, summary.final_test_acc) == (None,) * 3
    tiny("parts", comm_round=2, trainer=trainer)
    draw()
    tiny("parts", mode="resume", trainer=trainer)
    assert content(tmp_path / "whole") == content(tmp_path / "parts")
    assert trainer.threads == {1}
    for record in tiny.records("parts"):
        assert record["test_metrics"].keys() == {"mse"}
        assert record["test_acc"] is None


def test_settings_that_do_not_fit_data_are_refused(tiny: Tiny) -> None:
    many = range(32_768)  # more clients than add up exactly
    data = LoaderData(dict.fromkeys(many, ()), dict.fromkeys(many, 1), (), 10)
    settings = {"client_num_in_total": len(many), "client_num_per_round": len(many)}
    with pytest.raises(UserError, match=r"^train_args\.client_num_per_round: 32768: "):
        tiny(data=data, **settings)
    few = LoaderData(dict.fromkeys(range(6), ()), {k: 7 * (k != 3) for k in range(6)}, (), 10)
    with pytest.raises(UserError, match=r"^train_args\.client_weighting: samples: client 3 "):
        tiny(data=few, client_weighting="samples")
