"""A file of a run folder that grows by lines, round by round."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from fednnnn_plugin.files import LONGEST_LINE, break_off, errors_named, sync


class LineFile:
    """Lines under a ``header``, if it has one; a process may have died at any place in the last."""

    def __init__(self, path: Path, header: bytes = b"") -> None:
        self.path, self.header = path, header

    def lines(self) -> Iterator[bytes]:
        """Yield the lines one at a time; one that is too long to be ours comes in pieces."""
        if self.path.is_file():
            with self.path.open("rb") as file:
                yield from iter(partial(file.readline, LONGEST_LINE), b"")

    def write(self, lines: bytes) -> None:
        """Add lines."""
        with errors_named(self.path), self.path.open("ab") as file:
            file.write(lines if file.tell() else self.header + lines)

    def sync(self) -> None:
        """Have the disk hold what was written: a checkpoint's rounds are then on record."""
        if self.path.exists():
            sync(self.path)

    def shorten(self, size: int) -> None:
        """Drop what was written after so many bytes."""
        break_off(self.path)
        with errors_named(self.path), self.path.open("ab") as file:
            file.truncate(size)
