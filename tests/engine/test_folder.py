"""A file is written whole or not at all."""

import os
from pathlib import Path

import pytest

from fednnnn_plugin.engine.folder import write_atomically


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
