"""Under ``using_mlops: true`` a round's scalars reach ``fedml.mlops.log``."""

import json
from pathlib import Path

import fedml
import pytest

from fednnnn_plugin.engine.run import run_recipe
from fednnnn_plugin.fedml.mlops import mlops
from fednnnn_plugin.recipe import find_recipe, load_recipe

RUN = ["train_args.comm_round=2", "train_args.epochs=1", "device_args.using_gpu=false"]


def test_scalars_reach_fedml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[dict[str, float]] = []
    monkeypatch.setattr(fedml.mlops, "log", logged.append)
    recipe = load_recipe(find_recipe("digits_noniid_b_fednnnn"), RUN)
    run_recipe(recipe, tmp_path / "run", followers=[mlops])

    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    assert [values["round"] for values in logged] == [1, 2]
    assert [values["Test/Acc"] for values in logged] == [record["test_acc"] for record in records]
    assert logged[1]["NWDA/integrated_norm"] == records[1]["integrated_norm"]


def test_a_service_that_is_down_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def down(_metrics: dict[str, float]) -> None:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(fedml.mlops, "log", down)
    recipe = load_recipe(find_recipe("digits_noniid_b_fednnnn"), RUN)
    summary = run_recipe(recipe, tmp_path / "run", followers=[mlops])

    assert summary is not None
    assert "round 2: fedml.mlops.log failed: no route to host" in caplog.text
