"""Live tracking: the same numbers as metrics.jsonl."""

import json
import struct
from pathlib import Path

import pytest
import wandb
from tensorboardX.proto.event_pb2 import Event

from fednnnn_plugin.engine.progress import TensorBoard
from fednnnn_plugin.engine.run import run_recipe
from fednnnn_plugin.engine.settings import recipe_followers
from fednnnn_plugin.recipe import find_recipe, load_recipe

RUN = ["train_args.comm_round=2", "train_args.epochs=1", "device_args.using_gpu=false"]


def events(folder: Path) -> dict[tuple[str, int], float]:
    """Read event files: records of length, checksum, protobuf, checksum."""
    found = {}
    for file in folder.iterdir():
        content = file.read_bytes()
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            event = Event.FromString(content[12 : 12 + length])
            for value in event.summary.value:
                found[value.tag, event.step] = value.simple_value
            content = content[16 + length :]
    return found


def test_tensorboard_has_the_numbers_of_the_records(tmp_path: Path) -> None:
    recipe = load_recipe(find_recipe("digits_noniid_b_fednnnn"), RUN)
    run_recipe(recipe, tmp_path / "run", followers=[TensorBoard()])

    found = events(tmp_path / "run" / "tensorboard")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 2
    for record in map(json.loads, lines):
        number = record["round"]
        assert found["Test/Acc", number] == pytest.approx(record["test_acc"])
        assert found["NWDA/mean_update_norm", number] == pytest.approx(record["mean_update_norm"])
        layer = record["layers"]["fc2"]["server_update_norm"]
        assert found["NWDA/fc2/server_update_norm", number] == pytest.approx(layer)
        assert ("Test/ServedAcc", number) not in found


def test_weights_and_biases_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logged = []
    log = wandb.sdk.wandb_run.Run.log
    monkeypatch.setattr(
        wandb.sdk.wandb_run.Run, "log", lambda run, data: (logged.append(data), log(run, data))
    )
    overrides = [*RUN, "tracking_args.enable_wandb=true", "tracking_args.wandb_project=digits"]
    recipe = load_recipe(find_recipe("digits_noniid_b_fednnnn"), overrides)
    run_recipe(recipe, tmp_path / "run", followers=recipe_followers(recipe))

    assert [values["round"] for values in logged] == [1, 2]
    records = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert [values["Test/Acc"] for values in logged] == [record["test_acc"] for record in records]
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*"))
    assert wandb.run is None
