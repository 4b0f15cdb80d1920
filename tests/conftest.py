"""The real data, what becomes of the tests that need it, and how examples are drawn."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

from fednnnn_plugin.data.load import is_present

# New examples at every run on a desk; the same ones in the gate, which judges the change alone.
settings.register_profile("gate", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("gate")

# A shell's background jobs ignore it, and so would each process that is started here to be stopped.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_DATA = Path(os.environ.get("FEDNNNN_DATA", "~/fedml_data")).expanduser()
_MISSING = [name for name in ("mnist", "cifar10") if not is_present(name, _DATA)]
_DESELECTED = pytest.StashKey[int]()


@pytest.fixture(scope="session")
def real_data_dir() -> Path:
    """The folder with MNIST and CIFAR-10, for tests marked ``real_data``."""
    return _DATA


@pytest.fixture(scope="session")
def unmeasured() -> dict[str, str]:
    """The environment of processes whose time, memory or files count: without ``pytest --cov``."""
    return {name: v for name, v in os.environ.items() if not name.startswith("COVERAGE_")}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests on real data where there is none, unless it was said to be there."""
    needing = [item for item in items if item.get_closest_marker("real_data")]
    config.stash[_DESELECTED] = 0
    if not (_MISSING and needing):
        return
    if "FEDNNNN_DATA" in os.environ:
        raise pytest.UsageError(f"FEDNNNN_DATA={_DATA}: no {' and no '.join(_MISSING)} there")
    items[:] = [item for item in items if item not in needing]
    config.hook.pytest_deselected(items=needing)
    config.stash[_DESELECTED] = len(needing)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say what was left out, and how to have it."""
    if deselected := config.stash.get(_DESELECTED, 0):
        terminalreporter.write_line(
            f"{deselected} tests on real data deselected: no {' and no '.join(_MISSING)} at "
            f"{_DATA}; set FEDNNNN_DATA to a folder that holds them",
            yellow=True,
        )
