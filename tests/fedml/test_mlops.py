"""Under ``using_mlops: true`` a round's scalars reach ``fedml.mlops.log``, until it fails."""

import json

import fedml
import pytest

import fednnnn_plugin as fp
from fednnnn_plugin.fedml.processes import Mlops


@pytest.mark.parametrize("reachable", [True, False])
def test_mlops_gets_scalars_until_one_failure(reachable, tmp_path, monkeypatch, caplog) -> None:
    """FedML 0.9.6 raises with its lock held: a second call would wait for ever."""
    logged: list[dict[str, float]] = []

    def log(metrics: dict[str, float]) -> None:
        logged.append(metrics)
        if not reachable:
            raise ConnectionError("no route to host")

    monkeypatch.setattr(fedml.mlops, "log", log)
    short = ["train_args.comm_round=2", "train_args.client_num_per_round=2"]
    short += ["train_args.epochs=1", "device_args.using_gpu=false"]
    name, folder = "digits_noniid_b_fednnnn", tmp_path / "run"
    fp.run(name, overrides=short, output=folder, followers=[Mlops()])
    records = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").open()]
    sent = [[line["round"], line["Test/Acc"], line["NWDA/integrated_norm"]] for line in logged]
    expected = [[line[k] for k in ("round", "test_acc", "integrated_norm")] for line in records]
    assert sent == (expected if reachable else expected[:1])
    warnings = [record.message for record in caplog.records if "mlops" in record.message]
    assert [line.startswith("round 1: ") for line in warnings] == [True] * (not reachable)
