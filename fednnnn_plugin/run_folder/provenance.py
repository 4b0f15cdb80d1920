"""Which code makes a run's numbers: versions of packages, and the commit of a clone."""

import platform
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


def commit() -> str | None:
    """Return the commit of the clone that the package runs from; None where there is no clone.

    It is read from git's files, as this package starts no programs: changes that are not committed
    do not show.
    """
    clone = Path(fednnnn_plugin.__file__).parents[1]
    git = common = clone / ".git"
    try:
        if git.is_file():  # a further work tree, whose branches are those of the first
            git = clone / git.read_text().removeprefix("gitdir:").strip()
            common = git / (git / "commondir").read_text().strip()
        head = (git / "HEAD").read_text().strip()
        branch = head.removeprefix("ref: ")
        if branch == head:
            return head
        if (common / branch).exists():
            return (common / branch).read_text().strip()
        packed = (common / "packed-refs").read_text().splitlines()
        return next((line.split()[0] for line in packed if line.endswith(f" {branch}")), None)
    except OSError:
        return None
