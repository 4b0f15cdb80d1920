"""Which code makes a run's numbers: versions of packages, and the commit of a clone."""

import os
import platform
import subprocess
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import fednnnn_plugin


@cache  # reading what pip has written takes as long as a round of the digits
def versions() -> dict[str, str]:
    """Return the versions that the numbers may depend on."""
    found = {"python": platform.python_version(), "fednnnn-plugin": fednnnn_plugin.__version__}
    for package in ("fedml", "torch", "torchvision", "numpy"):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


@cache
def commit() -> str | None:
    """Return the commit of the clone that the package runs from; None where there is no clone.

    It ends in ``-dirty`` where files that git knows have been changed since.
    """
    clone = Path(fednnnn_plugin.__file__).parents[1]
    if not (clone / ".git").exists():  # a folder above may be another's
        return None
    # The clone may be another user's; no program runs that its settings name.
    settings = ("-c", "safe.directory=*", "-c", "core.fsmonitor=false")
    of = ("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    where = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(
            ["git", "-C", clone, "--no-optional-locks", *settings, *of],
            env=where,
            capture_output=True,
            check=True,
            text=True,
            timeout=10,
        ).stdout.strip()
    return None
