"""The screen: a line a round, or a bar on a terminal; warnings, each on a line."""

import io
import logging
import sys
from pathlib import Path
from time import sleep

import pytest

from fednnnn_plugin.engine.progress import ProgressDisplay
from fednnnn_plugin.engine.records import LayerRecord, RoundRecord, Seconds


def record(number: int, accuracy: float | None = 0.5, rejected: int = 0) -> RoundRecord:
    return RoundRecord(
        round=number,
        evaluated="average",
        test_metrics=None,
        test_acc=accuracy,
        test_loss=None,
        served_test_acc=None,
        mean_update_norm=1.0,
        mean_client_norm=4.0,
        server_update_norm=2.0,
        integrated_norm=2.0,
        client_norms=(4.0, 4.0, 4.0),
        layers={"fc": LayerRecord(1.0, 4.0, 2.0)},
        clients=4,
        rejected=rejected,
        degenerate=False,
        seconds=Seconds(train=20.0, aggregate=1.0, evaluate=0.25),
    )


def test_a_plain_line_a_round(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressDisplay(400) as display:
        display.begin(Path("run"), 0)
        display.client_done(1, 1, 4)
        display.round_done(record(1))
        display.round_done(record(398, accuracy=None, rejected=2))
        display.end()
    assert capsys.readouterr().out.splitlines() == [
        "round 1/400  accuracy 0.5000  N/E 0.250  21.25 s  2:21:19 left",
        "round 398/400  not tested  N/E 0.250  2 rejected  21.25 s  0:42 left",
    ]


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with ProgressDisplay(5) as display:
        display.begin(Path("run"), 3)  # resumed
        begun = terminal.getvalue().split("\r")[-1]
        sleep(0.15)  # the bar is drawn ten times a second at most
        display.client_done(4, 1, 4)
        display.round_done(record(4))
        after_a_round = terminal.getvalue().split("\r")[-1]
        display.round_done(record(5))
        display.end()
    shown = terminal.getvalue().split("\r")[-1]
    assert begun.startswith("round 4/5 ")
    assert "60%" in begun
    assert "80%, round 4: accuracy 0.5000  N/E 0.250" in after_a_round
    assert "100%, round 5: accuracy 0.5000  N/E 0.250" in shown
    assert "round 4/5, client 1/4" in terminal.getvalue()
    assert capsys.readouterr().out == ""


def test_warnings_of_ours_are_lines_while_a_run_lasts(capsys: pytest.CaptureFixture[str]) -> None:
    ours, theirs = logging.getLogger("fednnnn_plugin.engine"), logging.getLogger("fedml")
    with ProgressDisplay(2):
        ours.info("not for the screen")
        theirs.error("FedML's noise")
        try:
            raise ZeroDivisionError
        except ZeroDivisionError:
            ours.warning("client %d", 3, exc_info=True)
    assert capsys.readouterr().err == "warning: client 3\n"
    handlers = list(logging.getLogger("fednnnn_plugin").handlers)
    with ProgressDisplay(2):
        pass
    assert logging.getLogger("fednnnn_plugin").handlers == handlers
