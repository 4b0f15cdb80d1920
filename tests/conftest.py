"""Deselects tests whose data, browser, GPU or platform is missing; sets the number of examples."""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import settings

from .support.commands import Commands

# On a desk new examples at every run; in the gate the same ones: it judges the change alone.
settings.register_profile("desk", deadline=None, max_examples=25)
settings.register_profile("ci", deadline=None, max_examples=100, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=300)
settings.load_profile("ci" if os.environ.get("CI") else "desk")

# Two workers, and each with a thread for every core, is slower than one worker.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Background jobs ignore SIGINT and nohup's SIGHUP, and so would what is started here to be stopped.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

_DATA = Path(os.environ.get("FEDNNNN_DATA", "~/fedml_data")).expanduser()
_HELD = {"MNIST": ("MNIST",), "CIFAR-10": ("CIFAR-10-images", "cifar-10-batches-py")}
_MISSING_DATA = [
    name for name, folders in _HELD.items() if not any((_DATA / f).is_dir() for f in folders)
]
# Marker -> what to say where the tests that carry it cannot run.
_MISSING = {}
_NONE = f"no {' and no '.join(_MISSING_DATA)} at {_DATA}"
if _MISSING_DATA:
    _MISSING["real_data"] = f"on real data: {_NONE}; set FEDNNNN_DATA to a folder with them"
if not (shutil.which("chromium") or shutil.which("chromium-browser")):
    _MISSING["chromium"] = "in a browser: no chromium; install your system's package chromium"
if shutil.which("pdflatex") is None:
    _MISSING["pdflatex"] = "in LaTeX: no pdflatex; install your system's TeX Live"
if find_spec("fedml") is None:
    _MISSING["fedml"] = "with FedML, which is not here: it installs on Python 3.10 and 3.11"
if find_spec("flwr") is None:
    _MISSING["flower"] = "with Flower, which is not here: pip install '.[flower]' without FedML"
_MISSING["gpu"] = "on a GPU, unless PyTorch sees one"  # asked when such a test is collected
_MISSING["forks"] = "of custom code in forks, where PyTorch sees a GPU"
_PLATFORMS = ("fedml", "flower")  # whose folders of tests import them
# By `*`, which matches what is below: a folder that the command names is not ignored itself.
collect_ignore_glob = [f"{name}*" for name in _PLATFORMS if name in _MISSING]


@pytest.fixture(scope="session")
def real_data_dir() -> Path:
    """The folder with MNIST and CIFAR-10, for tests marked ``real_data``."""
    return _DATA


@pytest.fixture
def rules_taken_back() -> Iterator[None]:
    """Forget the rules that a test registers."""
    from fednnnn_plugin.server.rules import RULES

    with patch.dict(RULES):
        yield


@pytest.fixture
def own_code(tmp_path, monkeypatch, rules_taken_back: None) -> Iterator[Path]:
    """The current directory, for modules of a user's own; what they leave behind is taken back."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


# These import torch, which takes seconds, where it is needed: collection alone needs none.
@pytest.fixture(scope="session")
def data() -> Any:
    """The data of the tiny federation."""
    from .tiny import tiny_data

    return tiny_data()


@pytest.fixture
def tiny(tmp_path: Path, data: Any) -> Any:
    """Runs the tiny federation in this test's folder."""
    from .tiny import Tiny

    return Tiny(tmp_path, data)


@pytest.fixture
def start(own_code: Path) -> Any:
    """Run as `quick_run` does, in a folder with ``own.py``."""
    from .tiny import OWN, quick_run

    (own_code / "own.py").write_text(OWN)
    return quick_run


@pytest.fixture(scope="session")
def content() -> Callable[[Path], tuple[object, ...]]:
    """Read a run's model, its newest checkpoint, its records but for times, and its tables."""

    def read(folder: Path) -> tuple[object, ...]:
        path = max((folder / "checkpoint").iterdir())
        newest = path.name, path.read_bytes()
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        records = [json.loads(line) | {"seconds": None} for line in lines]
        tables = {path.name: path.read_bytes() for path in folder.glob("*.csv")}
        return (folder / "model.safetensors").read_bytes(), newest, records, tables

    return read


@pytest.fixture(scope="session")
def unmeasured() -> dict[str, str]:
    """The environment of processes whose time, memory or files count: without ``pytest --cov``."""
    return {name: v for name, v in os.environ.items() if not name.startswith("COVERAGE_")}


@pytest.fixture
def commands(
    tmp_path_factory: pytest.TempPathFactory, unmeasured: dict[str, str]
) -> Iterator[Commands]:
    no_cache = {"PYTHONDONTWRITEBYTECODE": "1"}  # it would count as a change of a file
    with patch.dict(os.environ, unmeasured | no_cache, clear=True):
        made = Commands(tmp_path_factory.mktemp("screens"))
    yield made
    made.kill_all()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Let a worker that has finished take over others' tests; `pytest` alone needs no xdist."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


def pytest_configure() -> None:
    """Refuse a ``FEDNNNN_DATA`` without the data: who sets it means the tests on them to run."""
    if "FEDNNNN_DATA" in os.environ and _MISSING_DATA:
        raise pytest.UsageError(f"FEDNNNN_DATA: {_NONE}")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what needs a platform by its folder, before -m chooses."""
    for name in _PLATFORMS:
        if item.path.is_relative_to(Path(__file__).with_name(name)):
            item.add_marker(name)


@pytest.hookimpl(trylast=True)  # of those that -m and -k leave
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests whose data, browser, GPU or platform is missing; order the others."""
    for marker in _MISSING:
        needing = [item for item in items if item.get_closest_marker(marker)]
        if needing and marker in ("gpu", "forks"):
            has_gpu = bool(import_module("torch.cuda").device_count())
            needing = needing if has_gpu == (marker == "forks") else []
        if not needing:
            continue
        items[:] = [item for item in items if item not in needing]
        config.hook.pytest_deselected(items=needing)
    if workers := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):
        items[:] = _slow_ones_first(items, int(workers))


def _slow_ones_first(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Order tests so that each worker's equal share of them begins with slow ones of whole files.

    None of these is left for the end, where one worker would run it and the others wait.
    """
    slow = [item for item in items if item.get_closest_marker("slow")]
    fast = [item for item in items if not item.get_closest_marker("slow")]
    ordered: list[pytest.Item] = []
    for left in range(workers, 0, -1):
        own = len(slow) // left
        while 0 < own < len(slow) and slow[own].path == slow[own - 1].path:
            own += 1
        others = max(0, (len(items) - len(ordered)) // left - own)
        ordered += slow[:own] + fast[:others]
        slow, fast = slow[own:], fast[others:]
    return ordered


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was left out, and how to have it."""
    for why in _MISSING.values():
        terminalreporter.write_line(f"deselected: tests {why}", yellow=True)
