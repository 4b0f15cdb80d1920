"""What is shown of a round."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fednnnn_plugin.followers.follower import figures
from fednnnn_plugin.followers.trackers import TensorBoard


@pytest.mark.parametrize(
    ("accuracy", "loss", "metrics", "shown"),
    [
        (0.5, 1.25, None, "accuracy 0.5000"),
        (None, 1.25, {"r2": 0.75}, "r2 0.75"),
        (None, -1.25, None, "loss -1.2500"),  # a regression
        (None, None, None, "not tested"),
    ],
)
def test_figures_of_a_test(
    accuracy: float | None, loss: float | None, metrics: dict[str, float] | None, shown: str
) -> None:
    record: Any = SimpleNamespace(
        test_acc=accuracy,
        test_loss=loss,
        test_metrics=metrics,
        mean_update_norm=1.0,
        mean_client_norm=2.0,
        rejected=0,
    )
    assert figures(record) == f"{shown}  N/E 0.500"


def test_program_may_choose_how_processes_start_after_a_warning_is_shown() -> None:
    """tqdm's own lock would have chosen it."""
    code = (
        "import logging, multiprocessing\n"
        "from fednnnn_plugin.followers.progress import warnings_shown\n"
        "with warnings_shown():\n"
        "    logging.getLogger('fednnnn_plugin').warning('no GPU')\n"
        "multiprocessing.set_start_method('spawn')\n"
        "from tqdm.auto import tqdm\n"
        "assert not hasattr(tqdm, '_lock')\n"  # which the program's own bars choose
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stderr == "warning: no GPU\n"


def test_tensorboard_leaves_out_rounds_that_are_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[dict[str, int]] = []
    monkeypatch.setattr("tensorboardX.SummaryWriter", lambda _, **how: opened.append(how))
    TensorBoard().begin(tmp_path, 3)
    assert opened == [{"purge_step": 4}]
