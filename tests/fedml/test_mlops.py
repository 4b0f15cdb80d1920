"""Under ``using_mlops: true`` a round's scalars reach ``fedml.mlops.log``, until it fails."""

import json
from pathlib import Path

import fedml
import pytest

from fednnnn_plugin.engine.run import run_recipe
from fednnnn_plugin.fedml.mlops import Mlops
from fednnnn_plugin.recipe import find_recipe, load_recipe

RUN = [
    "train_args.comm_round=3",
    "train_args.epochs=1",
    "device_args.using_gpu=false",
]


def run(folder: Path) -> list[dict]:
    recipe = load_recipe(find_recipe("digits_noniid_b_fednnnn"), RUN)
    run_recipe(recipe, folder, followers=[Mlops()])
    return [json.loads(line) for line in (folder / "metrics.jsonl").open()]


def test_scalars_reach_fedml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[dict[str, float]] = []
    monkeypatch.setattr(fedml.mlops, "log", logged.append)
    records = run(tmp_path / "run")
    assert [values["round"] for values in logged] == [1, 2, 3]
    assert [values["Test/Acc"] for values in logged] == [record["test_acc"] for record in records]
    assert logged[1]["NWDA/integrated_norm"] == records[1]["integrated_norm"]


def test_one_failure_ends_the_calls_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """FedML 0.9.6 raises with its lock held: a second call would wait for ever."""
    calls = []

    def down(_metrics: dict[str, float]) -> None:
        assert not calls, "a second call"
        calls.append(1)
        raise ConnectionError("no route to host")

    monkeypatch.setattr(fedml.mlops, "log", down)
    assert len(run(tmp_path / "run")) == 3
    assert len(calls) == 1
    [warning] = [record for record in caplog.records if "fedml.mlops.log" in record.getMessage()]
    assert "round 1" in warning.getMessage()
    assert "no route to host" in warning.getMessage()
