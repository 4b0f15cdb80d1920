"""A run leaves everything global as it found it, however it ends."""

import gc
import logging
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.datasets
import torch
from click.testing import CliRunner

from fednnnn_plugin.cli import main
from fednnnn_plugin.engine.evaluation import Evaluation
from fednnnn_plugin.engine.followers import Follower
from fednnnn_plugin.engine.records import RoundRecord
from fednnnn_plugin.errors import RunError
from fednnnn_plugin.server.layout import State

from .conftest import Run, Tiny, draw

CUDNN = ("allow_tf32", "deterministic", "benchmark", "enabled")


def fingerprint() -> dict[str, object]:
    """Everything of the process that a run could change, by name."""
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002
    root = logging.getLogger()
    ours = logging.getLogger("fednnnn_plugin")
    gc.collect()
    return {
        "python's generator": random.getstate(),
        "numpy's generator": (kind, keys.tobytes(), *rest),
        "torch's generator": torch.get_rng_state().numpy().tobytes(),
        "torch's seed": torch.initial_seed(),
        "default dtype": torch.get_default_dtype(),
        "threads of operators": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "deterministic": torch.get_deterministic_debug_mode(),
        "matrix products": torch.get_float32_matmul_precision(),
        "matrix products on a GPU": torch.backends.cuda.matmul.allow_tf32,
        "cudnn": [getattr(torch.backends.cudnn, name) for name in CUDNN],
        "root logger": (root.level, list(root.handlers), list(root.filters), root.disabled),
        "our logger": (ours.level, list(ours.handlers), ours.propagate, ours.disabled),
        "warnings": (list(warnings.filters), warnings.showwarning),
        "signals": {n: signal.getsignal(n) for n in signal.valid_signals() if n != signal.SIGKILL},
        "signal mask": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "environment": dict(os.environ),
        "folder": Path.cwd(),
        "path": list(sys.path),
        "hooks": (sys.excepthook, threading.excepthook, sys.unraisablehook, list(sys.meta_path)),
        "streams": (sys.stdin, sys.stdout, sys.stderr, print),
        "garbage": (gc.isenabled(), gc.get_threshold()),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "files": sorted(_open_files()),
    }


def _open_files() -> Iterator[str]:
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists them
            if descriptor.readlink().suffix not in (".ttf", ".ttc", ".otf"):  # matplotlib's
                yield f"{descriptor.name} {descriptor.readlink()}"


@contextmanager
def unchanged() -> Iterator[None]:
    """Compare the fingerprints before and after."""
    draw()
    before = fingerprint()
    yield
    after = fingerprint()
    for name, value in before.items():
        assert after[name] == value, name


@pytest.fixture(scope="module", autouse=True)
def warm() -> Iterator[None]:
    """Have the libraries make the changes that they make once, at their first use.

    scikit-learn and sympy, which torch.func imports, add filters of warnings; torch.func also puts
    TORCHINDUCTOR_CACHE_DIR into the environment.
    """
    sklearn.datasets.load_digits()
    torch.func.vmap(torch.func.grad(torch.sum))(torch.ones(2, 2))
    gc.collect()
    gc.freeze()  # what is there now: collections are quick
    yield
    gc.unfreeze()


@pytest.fixture
def run(tiny: Tiny) -> Callable[..., None]:
    """Run all clients, an epoch each, and check that nothing has changed."""

    def start(error: type[BaseException] | None = None, **given: Any) -> None:
        usual = {"client_num_per_round": 6, "epochs": 1, "comm_round": 2}
        with unchanged(), pytest.raises(error) if error else nullcontext():
            tiny(**usual | given)

    return start


def test_run_ignores_lowered_matrix_precision(run: Run, tiny: Tiny) -> None:
    """Torch then refused to say what they had been set to, and a CPU trained with bfloat16."""
    run()
    model = tiny.model()
    torch.set_float32_matmul_precision("medium")
    try:
        run(mode="overwrite")
    finally:
        torch.set_float32_matmul_precision("highest")
    torch.testing.assert_close(tiny.model(), model, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("precision", "batching"), [("tf32", "auto"), ("bf16", 3), ("fp64", "off")]
)
def test_run_leaves_globals_as_they_were(run: Run, precision: str, batching: str | int) -> None:
    run(precision=precision, client_batching=batching)


class Trainer:
    """A user's own, which draws from everything and may fail."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def train(self, client: int, state: State, round_number: int) -> State:
        shift = draw()
        if round_number == 2 and client == 1:
            raise self._error
        return {name: tensor + shift for name, tensor in state.items()}

    def test(self, state: State) -> Evaluation | None:
        return Evaluation(draw() / 3, None)


@pytest.mark.parametrize(("failures", "error"), [(2, None), (0, RunError)])
def test_trainer_that_draws_and_raises_leaves_no_trace(run: Run, failures: int, error: Any) -> None:
    trainer = Trainer(ZeroDivisionError("no samples"))
    run(error, max_client_failures=failures, trainer=trainer)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_run_cut_short_leaves_globals(run: Run, error: type[BaseException]) -> None:
    class Ending(Follower):
        def round_done(self, record: RoundRecord) -> None:
            raise error

    run(error, followers=[Ending()])


ONE_ROUND = ["--set", "train_args.comm_round=1", "--set", "train_args.client_num_per_round=2"]


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["run", "digits_noniid_b_fednnnn", *ONE_ROUND], 0),
        (["run", "digits_noniid_b_fednnnn", "--set", "train_args.beta=-1"], 2),
        (["partition", "digits_noniid_ub_fednnnn", "--plot", "clients.svg"], 0),
        (["recipes", "copy", "mine"], 0),
    ],
)
def test_commands_leave_globals_as_they_were(
    arguments: list[str], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with unchanged():
        result = CliRunner().invoke(main, arguments)
    assert result.exit_code == status, result.output
