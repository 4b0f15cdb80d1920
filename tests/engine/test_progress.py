"""Who follows a run: the screen, TensorBoard and Weights & Biases, with the records' numbers."""

import io
import logging
import re
import struct
import sys
from pathlib import Path
from time import sleep
from types import SimpleNamespace
from typing import Any

import pytest
import wandb
from tensorboardX.proto.event_pb2 import Event

from fednnnn_plugin.engine.display import progress_display
from fednnnn_plugin.engine.from_recipe import recipe_followers
from fednnnn_plugin.engine.records import Seconds
from fednnnn_plugin.engine.trackers import TensorBoard


def record(number: int) -> Any:
    figures = {"test_acc": 0.5, "mean_update_norm": 1.0, "mean_client_norm": 4.0, "rejected": 2}
    return SimpleNamespace(round=number, test_metrics=None, seconds=Seconds(20, 1, 0.25), **figures)


def test_progress_without_a_terminal_is_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_display(400) as display:
        display.begin(Path("run"), 0)
        for number in (1, 398):
            display.round_done(record(number))
        display.end()
    first, last = capsys.readouterr().out.splitlines()
    assert first == "round 1/400  accuracy 0.5000  N/E 0.250  2 rejected  21.25 s  2:21:19 left"
    assert last.endswith("  0:42 left")


def test_progress_on_a_terminal_is_a_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_display(5) as display:
        display.begin(Path("run"), 3)  # resumed
        sleep(0.15)  # the bar is drawn ten times a second at most
        display.client_done(4, 1, 4)
        display.round_done(record(4))
        display.end()
    begun, *_, ended = terminal.getvalue().strip("\r\n").split("\r")
    assert re.match(r"round 4/5 .* 60%", begun)
    assert "round 4/5, client 1/4" in terminal.getvalue()
    assert "80%, round 4: accuracy 0.5000  N/E 0.250" in ended
    assert capsys.readouterr().out == ""


def test_warnings_of_ours_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    ours, theirs = logging.getLogger("fednnnn_plugin.engine"), logging.getLogger("fedml")
    with progress_display(2):
        ours.info("not for the screen")
        theirs.error("FedML's noise")
        try:
            raise ZeroDivisionError
        except ZeroDivisionError:
            ours.warning("client %d", 3, exc_info=True)
    assert capsys.readouterr().err == "warning: client 3\n"


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


@pytest.mark.slow
def test_trackers_have_the_numbers_of_the_records(
    run: Any, recipe: Any, records: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb.setup()  # reads the variables of the environment, once a process
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logged, run_of_wandb = [], wandb.sdk.wandb_run.Run
    log = run_of_wandb.log
    monkeypatch.setattr(run_of_wandb, "log", lambda run, x: (logged.append(x), log(run, x)))
    keys = {"enable_wandb": True, "wandb_project": "digits", "mlops_api_key": "SECRET"}
    given = recipe(comm_round=2, **keys)
    run(given, tmp_path, followers=[TensorBoard(), *recipe_followers(given)])

    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(b"SECRET" in content for content in written)
    assert list((tmp_path / "wandb").glob("offline-run-*"))
    assert wandb.run is None
    found = events(tmp_path / "tensorboard")
    for values, record in zip(logged, records(tmp_path), strict=True):
        number = values.pop("round")
        assert number == record["round"]
        assert values["Test/Acc"] == record["test_acc"]
        assert values["NWDA/mean_update_norm"] == record["mean_update_norm"]
        layer = record["layers"]["fc2"]["server_update_norm"]
        assert values["NWDA/fc2/server_update_norm"] == layer
        assert {tag: v for (tag, n), v in found.items() if n == number} == pytest.approx(values)
