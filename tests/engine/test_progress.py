"""Who follows a run: the screen, TensorBoard and Weights & Biases, with the records' numbers."""

import io
import logging
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import Any

import pytest
import wandb
from tensorboardX.proto.event_pb2 import Event

from fednnnn_plugin.engine.display import progress_display
from fednnnn_plugin.engine.from_recipe import recipe_followers
from fednnnn_plugin.engine.records import RoundRecord
from fednnnn_plugin.engine.trackers import TensorBoard

MakeRecord = Callable[..., RoundRecord]


def test_progress_without_a_terminal_is_lines(
    capsys: pytest.CaptureFixture[str], make_record: MakeRecord
) -> None:
    with progress_display(400) as display:
        display.begin(Path("run"), 0)
        display.client_done(1, 1, 4)
        display.round_done(make_record(1))
        display.round_done(make_record(398, test_acc=None, rejected=2))
        display.end()
    assert capsys.readouterr().out.splitlines() == [
        "round 1/400  accuracy 0.5000  N/E 0.250  21.25 s  2:21:19 left",
        "round 398/400  not tested  N/E 0.250  2 rejected  21.25 s  0:42 left",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def last(self) -> str:
        return self.getvalue().split("\r")[-1]


def test_progress_on_a_terminal_is_a_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], make_record: MakeRecord
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_display(5) as display:
        display.begin(Path("run"), 3)  # resumed
        assert terminal.last().startswith("round 4/5 ")
        assert "60%" in terminal.last()
        sleep(0.15)  # the bar is drawn ten times a second at most
        display.client_done(4, 1, 4)
        assert "round 4/5, client 1/4" in terminal.last()
        display.round_done(make_record(4))
        assert "80%, round 4: accuracy 0.5000  N/E 0.250" in terminal.last()
        display.end()
    assert capsys.readouterr().out == ""


def test_warnings_of_ours_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    ours, theirs = logging.getLogger("fednnnn_plugin.engine"), logging.getLogger("fedml")
    handlers = list(logging.getLogger("fednnnn_plugin").handlers)
    with progress_display(2):
        ours.info("not for the screen")
        theirs.error("FedML's noise")
        try:
            raise ZeroDivisionError
        except ZeroDivisionError:
            ours.warning("client %d", 3, exc_info=True)
    assert capsys.readouterr().err == "warning: client 3\n"
    assert logging.getLogger("fednnnn_plugin").handlers == handlers


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
        assert "Test/ServedAcc" not in values
        assert {tag: v for (tag, n), v in found.items() if n == number} == pytest.approx(values)
