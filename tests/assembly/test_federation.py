"""A whole run, in process: what its bits depend on, and that it leaves all global as it was."""

import gc
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from click.testing import CliRunner
from torch.nn.utils import parameters_to_vector

from fednnnn_plugin.cli import main
from fednnnn_plugin.errors import RunError, UserError
from fednnnn_plugin.models import create_model
from fednnnn_plugin.processes.endings import exit_at_signals
from fednnnn_plugin.processes.numerics import numerics
from fednnnn_plugin.rounds.loaders import LoaderData
from fednnnn_plugin.run_folder.records import Evaluation
from fednnnn_plugin.seeds import generators_state
from fednnnn_plugin.server.layout import State

from ..support.commands import quick_words
from ..tiny import Content, Drawing, Tiny, draw, follower


def test_run_bits_depend_on_the_seed_alone(tiny: Tiny) -> None:
    """The caller's model is left as it was."""
    model, found = create_model("nnnn_digits", 0), []
    before = parameters_to_vector(model.parameters()).detach().clone()
    for settings in ({"worker_num": 1}, {"worker_num": 2}, {"random_seed": 1}):
        tiny(mode="overwrite", comm_round=2, model=model, **settings)
        found.append(parameters_to_vector(tiny.model().values()))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    assert torch.equal(parameters_to_vector(model.parameters()), before)


def test_run_in_inference_mode_has_the_bits_of_one_outside(tiny: Tiny, content: Content) -> None:
    for name, mode in (("outside", False), ("inside", True)):
        with torch.inference_mode(mode):
            tiny(name, comm_round=2)
            assert torch.is_inference_mode_enabled() == mode
    assert content(tiny.folder / "inside") == content(tiny.folder / "outside")


def test_trainer_repeats_its_bits_and_metrics(tiny: Tiny, content: Content) -> None:
    trainer = Drawing()
    summary = tiny("whole", trainer=trainer)
    assert (summary.best_test_acc, summary.best_round, summary.final_test_acc) == (None,) * 3
    tiny("parts", comm_round=2, trainer=trainer)
    draw()
    tiny("parts", mode="resume", trainer=trainer)
    assert content(tiny.folder / "whole") == content(tiny.folder / "parts")
    assert trainer.threads == {1}
    for record in tiny.records("parts"):
        assert record["test_metrics"].keys() == {"mse"}
        assert record["test_acc"] is None


class OnItsThread:
    """A user's test, which keeps something for its thread; an interrupt comes while it tests."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.own, self.counts = folder, threading.local(), list[int]()
        self.saved = False

    def test(self, state: State, round_number: int) -> Evaluation:
        self.own.count = getattr(self.own, "count", 0) + 1
        self.counts.append(self.own.count)
        if round_number == 3:
            os.kill(os.getpid(), signal.SIGINT)
            deadline = time.monotonic() + 60.0
            while not self.saved and time.monotonic() < deadline:
                time.sleep(0.01)
                self.saved = any(self.folder.rglob("round-*"))
        return Evaluation(accuracy=0.5)


def test_own_test_has_one_thread_and_keeps_no_stop_from_saving(tiny: Tiny) -> None:
    tester = OnItsThread(tiny.folder)
    with pytest.raises(KeyboardInterrupt), exit_at_signals():
        tiny(tester=tester, comm_round=4, checkpoint_every=50)
    assert (tester.counts, tester.saved) == ([1, 2, 3], True)


def test_more_clients_than_add_up_exactly_are_refused(tiny: Tiny) -> None:
    clients = dict.fromkeys(range(32_768), 1)
    data = LoaderData(dict.fromkeys(clients, ()), clients, (), 10)
    settings = {"client_num_in_total": len(clients), "client_num_per_round": len(clients)}
    with pytest.raises(UserError, match=r"^train_args\.client_num_per_round: 32768: "):
        tiny(data=data, **settings)


CUDNN = ("allow_tf32", "deterministic", "benchmark", "enabled")


def fingerprint() -> dict[str, object]:
    """Everything of the process that a run could change, by name."""
    loggers = {name: logging.getLogger(name) for name in ("root", "fednnnn_plugin")}
    backends = torch.backends
    gc.collect()
    return {
        "generators": (generators_state(), torch.initial_seed()),
        "default dtype": torch.get_default_dtype(),
        "threads of operators": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "deterministic": torch.get_deterministic_debug_mode(),
        "products": (torch.get_float32_matmul_precision(), backends.cuda.matmul.allow_tf32),
        "cudnn": [getattr(backends.cudnn, name) for name in CUDNN],
        "logs": {k: (v.level, v.handlers[:], v.filters[:], v.disabled) for k, v in loggers.items()},
        "warnings": (list(warnings.filters), warnings.showwarning),
        "signals": {n: signal.getsignal(n) for n in signal.valid_signals() if n != signal.SIGKILL},
        "signal mask": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "places": (dict(os.environ), Path.cwd(), list(sys.path)),
        "hooks": (sys.excepthook, threading.excepthook, sys.unraisablehook, list(sys.meta_path)),
        "streams": (sys.stdin, sys.stdout, sys.stderr, print),
        "garbage": (gc.isenabled(), gc.get_threshold()),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "files": len(list(Path("/proc/self/fd").iterdir())),
    }


@contextmanager
def unchanged() -> Iterator[None]:
    """Compare the fingerprints before and after."""
    draw()
    before = fingerprint()
    yield
    after = fingerprint()
    assert not [name for name in before if before[name] != after[name]]


@pytest.fixture(scope="module", autouse=True)
def warm() -> Iterator[None]:
    """Have the libraries make the changes that they make once, at their first use.

    sympy, which torch.func imports, adds filters of warnings; torch.func also puts
    TORCHINDUCTOR_CACHE_DIR into the environment.
    """
    torch.func.vmap(torch.func.grad(torch.sum))(torch.ones(2, 2))
    gc.collect()
    gc.freeze()  # what is there now: collections are quick
    yield
    gc.unfreeze()


INTERRUPTING = follower(round_done=Mock(side_effect=KeyboardInterrupt))


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"precision": "bf16", "client_batching": 3}, None),
        ({"precision": "fp64", "client_batching": "off"}, None),
        ({"trainer": Drawing(fails=True)}, RunError),
        ({"followers": [INTERRUPTING]}, KeyboardInterrupt),
    ],
)
def test_run_leaves_globals_as_they_were(tiny: Tiny, given: dict[str, Any], error: Any) -> None:
    with unchanged(), pytest.raises(error) if error else nullcontext():
        tiny(client_num_per_round=6, comm_round=2, **given)


def test_run_ignores_lowered_matrix_precision(tiny: Tiny) -> None:
    """Torch then refused to say what they had been set to, and a CPU trained with bfloat16."""
    tiny("usual", comm_round=1)
    torch.set_float32_matmul_precision("medium")
    try:
        with unchanged():
            tiny("lowered", comm_round=1)
    finally:
        torch.set_float32_matmul_precision("highest")
    torch.testing.assert_close(tiny.model("lowered"), tiny.model("usual"), rtol=0, atol=0)


def test_commands_leave_globals_as_they_were(own_code: Path) -> None:
    with unchanged():
        result = CliRunner().invoke(main, quick_words("run"))
    assert result.exit_code == 0, result.output


def test_precision_switches_are_restored() -> None:
    """Those of PyTorch 2.9 and later, by library and kind of operation."""
    backends: Any = torch.backends
    if not hasattr(backends, "fp32_precision"):
        pytest.skip("of PyTorch before 2.9 there are none")
    switches = (backends.cudnn.conv, backends.cudnn.rnn)
    switches += (backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn)
    before = [of.fp32_precision for of in switches]
    try:
        for of in switches:
            of.fp32_precision = "tf32"
        with numerics("fp32"):
            assert [of.fp32_precision for of in switches] == ["ieee"] * 5
        assert [of.fp32_precision for of in switches] == ["tf32"] * 5
    finally:
        for of, was in zip(switches, before, strict=True):
            of.fp32_precision = was
