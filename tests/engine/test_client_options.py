"""Losses, optimizers and metrics: as objects, and what does not fit; else in the plain loop."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from sklearn.metrics import r2_score
from torch.nn import functional as F

import fednnnn_plugin as fp
from fednnnn_plugin.engine.scorer import Scorer

from .conftest import cell

FEDAVG = "digits_noniid_b_fedavg"
CELL = cell()
FOUR = {"client_num_in_total": 4, "client_num_per_round": 4, "allow_code": True}
NUMBERS: dict[str, Any] = {"data": "own:numbers", "model": "own:net", "loss": "mse", **FOUR}
Start = Callable[..., fp.Run]


@pytest.mark.slow
def test_functions_as_objects_give_the_recipe_s_bits(
    start: Start, content: Callable[[Path], object]
) -> None:
    names: dict[str, Any] = {"loss": "own:huber", "client_optimizer": "RMSprop"}
    names["validation_args.metrics"] = ["own:worst", "r2"]
    by_name = start("named", FEDAVG, **NUMBERS | names)
    objects = {"loss": CELL["huber"], "metrics": [CELL["worst"], "r2"]}
    objects["client_optimizer"] = functools.partial(torch.optim.RMSprop, alpha=0.99)
    given = NUMBERS | objects
    assert content(start("objects", FEDAVG, **given).folder) == content(by_name.folder)
    with pytest.raises(fp.UserError, match="resume"):
        start("objects", FEDAVG, resume=True, **given | {"loss": F.mse_loss, "comm_round": 5})


@pytest.mark.slow
def test_metrics_are_those_of_the_whole_test(start: Start) -> None:
    run, model = start("run", FEDAVG, metrics=["r2", CELL["worst"]], **NUMBERS), CELL["net"](1)
    metrics = json.loads(Path("run/metrics.jsonl").read_text().splitlines()[-1])["test_metrics"]
    model.load_state_dict(load_file("run/model.safetensors"))
    _, _, x, y, _ = CELL["numbers"]()
    outputs = model(x).detach()
    assert metrics["r2"] == pytest.approx(r2_score(y, outputs), rel=1e-4)
    assert metrics["worst"] == pytest.approx(float(CELL["worst"](outputs, y)))
    assert run.summary is not None
    assert (run.summary.metric, run.summary.final_metric) == ("r2", metrics["r2"])


@pytest.mark.parametrize(
    ("name", "outputs", "targets", "value"),
    [
        # A label of -100 counts for nothing.
        ("f1_macro", [[2, 0], [0, 1], [3, 0], [1, 0], [9, 0]], [0, 1, 0, 1, -100], 11 / 15),
        ("f1", [[1], [-1], [2], [-2]], [1, 0, 1, 1], 0.8),
        ("roc_auc", [[1], [-1], [2], [-2]], [1.0, 0.0, 1.0, 0.0], 1),
        ("neg_mean_absolute_error", [[1], [-1], [2], [-2]], [1.5, -1.0, 2.0, -2.0], -0.125),
        ("f1_micro", [[1, -1], [-1, 1]], [[1, 0], [1, 1]], 0.8),
    ],
)
def test_scorer_worked_by_hand(name: str, outputs: Any, targets: Any, value: float) -> None:
    found = Scorer(name)(torch.tensor(outputs, dtype=torch.float32), torch.tensor(targets))
    assert found == pytest.approx(value)


def test_metric_that_fails_ends_the_run(start: Start) -> None:
    """It may need more labels than a trial before the run has."""
    with pytest.raises(fp.RunError, match=r"round 1: .*validation_args\.metrics: roc_auc: "):
        start("run", FEDAVG, metrics=["roc_auc"], **NUMBERS)
