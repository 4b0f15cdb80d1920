"""A file is written whole or not at all."""

import os
from pathlib import Path

import pytest

from fednnnn_plugin.engine.folder import remove_left_over, write_atomically


def test_a_file_is_replaced_and_nothing_left_over(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_error_leaves_the_old_content_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"one")

    def fail(_: int) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(type(error)) as caught:
        write_atomically(path, b"two")
    if isinstance(caught.value, OSError):
        assert (caught.value.filename, caught.value.strerror) == (str(path), error.args[1])
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_dead_process_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in (".file.fednnnn-tmp", ".draft.tmp", "file.fednnnn-tmp"):
        (tmp_path / name).touch()
    remove_left_over(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {".draft.tmp", "file.fednnnn-tmp"}
    remove_left_over(tmp_path / "nowhere")
