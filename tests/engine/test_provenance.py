"""Which code made the numbers: the commit, however git keeps it."""

import subprocess
from pathlib import Path

import pytest

import fednnnn_plugin
from fednnnn_plugin.engine.provenance import commit, versions


@pytest.fixture
def git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run git in a folder, where the package pretends to be."""

    def run(*words: str, folder: Path = tmp_path / "clone") -> str:
        folder.mkdir(exist_ok=True)
        monkeypatch.setattr(
            fednnnn_plugin, "__file__", str(folder / "fednnnn_plugin" / "__init__.py")
        )
        who = ("-c", "user.name=n", "-c", "user.email=e")
        command = ("git", *who, "-C", str(folder), *words)
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    return run


def test_commit_of_a_clone(git, tmp_path: Path) -> None:
    git("init", "-b", "main")
    assert commit() is None  # none yet
    git("commit", "--allow-empty", "-m", "one")
    first = git("rev-parse", "HEAD")
    assert commit() == first
    git("pack-refs", "--all")
    assert commit() == first
    git("checkout", "--detach")
    assert commit() == first
    git("worktree", "add", str(tmp_path / "other"), "-b", "topic")
    git("commit", "--allow-empty", "-m", "two", folder=tmp_path / "other")
    assert commit() == git("rev-parse", "HEAD", folder=tmp_path / "other") != first


def test_commit_is_none_outside_a_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fednnnn_plugin, "__file__", str(tmp_path / "a" / "__init__.py"))
    assert commit() is None
    assert versions()["fednnnn-plugin"] == fednnnn_plugin.__version__
