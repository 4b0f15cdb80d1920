"""What cannot work is refused before the first round, with nothing written."""

import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fednnnn_plugin as fp
from fednnnn_plugin.assembly import build
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.rounds.sampling import draw_cohort
from fednnnn_plugin.rounds.simulation import Federation

from ..tiny import (
    HOSPITALS,
    PARTS,
    SIZES,
    TEST,
    Content,
    Doing,
    Start,
    Tiny,
    read_records,
)


def test_muon_trains_a_model_of_matrices(start: Start) -> None:
    """What it refuses is in ``test_refusals.py``."""
    model = nn.Sequential(nn.Linear(6, 5, bias=False), nn.Tanh(), nn.Linear(5, 4, bias=False))
    given = {"data": HOSPITALS, "model": model, "client_num_in_total": 4}
    start("run", client_num_per_round=2, client_optimizer="muon", **given)


@pytest.mark.forks
def test_what_a_step_imports_of_pytorch_is_imported_before_forks(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a masked Transformer does for seconds, in each fork of each round."""
    name = "torch.utils.show_pickle"
    monkeypatch.delitem(sys.modules, name, raising=False)

    class Late(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            import_module(name)
            return super().forward(inputs)

    given = {"data": HOSPITALS, "model": Late(6, 4), "worker_num": 2}
    start("run", **given, client_num_in_total=4, client_num_per_round=2)
    assert name in sys.modules


@pytest.mark.slow
def test_metric_without_a_value_of_the_untrained_model(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """Precision is undefined while no sample is predicted as class 1; a wrong call is refused.

    A metric gets the whole test: at the trial, and in each round. Its NaN is reported once.
    """
    sizes: list[int] = []

    def precision(outputs: Tensor, targets: Tensor) -> float:
        said = outputs.argmax(1) == 1
        sizes.append(len(targets))
        return int((said & (targets == 1)).sum()) / int(said.sum())

    def undefined(outputs: Tensor, targets: Tensor) -> float:
        return float("nan")

    model = nn.Linear(6, 4)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    tests = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*TEST), batch_size=9)
    given = {"data": (PARTS, tests), "model": model, "client_num_in_total": 4}
    metrics = [precision, undefined, "f1_macro"]
    settings = {"client_num_per_round": 4, "learning_rate": 0.5, "comm_round": 1}
    start("run", metrics=metrics, **settings, **given)
    assert sizes == [len(TEST[1])] * 2
    assert "before round 1: validation_args.metrics: precision: raised ZeroDiv" in caplog.text
    assert caplog.text.count("validation_args.metrics: undefined: gives NaN") == 1
    assert [*read_records(Path("run"))[0]["test_metrics"]] == ["precision", "f1_macro"]
    with pytest.raises(fp.UserError, match=r"raised TypeError: .*; tried before round 1$"):
        start("other", metrics=[lambda outputs: 0.0], client_num_per_round=4, **given)
    assert not Path("other").exists()


@pytest.mark.slow
def test_a_client_that_may_fail_is_not_tried(tiny: Tiny, data: FederatedData) -> None:
    first = draw_cohort(0, 1, len(SIZES), 4)[0]
    theirs = data.train_images[data.client_indices[first]]

    def call(layer: Doing, images: Tensor) -> Tensor:
        if layer.training and len(images) == 5 and (images[0] == theirs).flatten(1).all(1).any():
            raise RuntimeError("five")
        return images.flatten(1)

    model = nn.Sequential(Doing(call), nn.Linear(64, 10))
    with pytest.raises(fp.UserError, match=f"^the first step of client {first} failed: .*five"):
        tiny(model=model)
    tiny(model=model, comm_round=1, max_client_failures=1)
    assert tiny.records()[0]["rejected"] == 1


def test_a_trial_leaves_no_trace_in_w_0(
    start: Start, content: Content, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(), nn.Linear(5, 4))
    given = {"data": HOSPITALS, "model": model, "client_num_in_total": 4}
    start("tried", client_num_per_round=2, **given)
    monkeypatch.setattr(build, "check_model", lambda *_: [])
    monkeypatch.setattr(Federation, "try_out", lambda *_: None)
    start("untried", client_num_per_round=2, **given)
    assert content(Path("tried")) == content(Path("untried"))
