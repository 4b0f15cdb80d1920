"""The run folder: one run's files, each written whole or not at all, and nobody else's."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from logging.handlers import MemoryHandler
from pathlib import Path
from types import TracebackType
from typing import Literal

from filelock import FileLock, Timeout

from fednnnn_plugin.errors import UserError

Mode = Literal["new", "resume", "overwrite"]

LONGEST_LINE = 1 << 24  # bytes of a round's record
_SUFFIX = ".fednnnn-tmp"
_TRACKED = ("tensorboard", "wandb")  # folders that followers of a run write
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def errors_named(path: Path) -> Iterator[None]:
    """Name the file in errors of writing to it; the kernel reports a full disk without a name."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def open_regular(path: Path, max_bytes: int) -> BufferedReader:
    """Open a regular file (a pipe or a device would block or never end) of at most so many bytes.

    Raises:
        OSError: it cannot be opened, or is none.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    status = os.fstat(descriptor)
    problem = None
    if not stat.S_ISREG(status.st_mode):
        problem = "not a regular file"
    elif status.st_size > max_bytes:
        problem = f"{status.st_size} bytes, more than the {max_bytes} that it may have"
    if problem:
        os.close(descriptor)
        raise OSError(problem)
    return os.fdopen(descriptor, "rb")


def write_atomically(path: Path, content: bytes) -> None:
    """Write through a temporary file in the same folder, fsync and rename.

    Raises:
        OSError: naming ``path``; what it held before is as it was.
    """
    temporary = path.with_name(f".{path.name}{_SUFFIX}")
    with errors_named(path):
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def remove_left_over(folder: Path) -> None:
    """Remove the temporary files that a process left which died while writing."""
    for left_over in folder.glob(f".*{_SUFFIX}"):
        left_over.unlink()


class RunFolder:
    """Paths of a run's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe = path / "recipe.yaml"
        self.metrics = path / "metrics.jsonl"
        self.summary = path / "summary.json"
        self.model = path / "model.safetensors"
        self.checkpoints = path / "checkpoint"
        self.log = path / "fedml.log"
        self._lock = path / ".lock"
        self._folders = (self.checkpoints, *(path / name for name in _TRACKED))
        self._files = (self.recipe, self.metrics, self.summary, self.model, self.log)

    @contextmanager
    def locked(self, mode: Mode) -> Iterator[None]:
        """Create the folder and keep other runs out of it while this one lasts.

        A lock is the kernel's, so it ends with its process. Where ``mode`` is not ``"resume"`` what
        is left of another run is removed, but for checkpoints, whose names are their folder's.

        Raises:
            UserError: the folder and ``mode`` do not fit; another run is writing to it; it cannot
                be created or written to; something else is in a file's place.
            OSError: the disk is full.
        """
        try:
            self.check(mode)
            self._refuse_what_is_no_file()
            self.path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self._lock, timeout=0)
            lock.acquire()
        except Timeout:
            raise UserError(f"--output: {self.path}: another run is writing to it") from None
        except OSError as error:
            if error.errno in _DISK_FULL:
                raise OSError(error.errno, error.strerror, str(self.path)) from error
            raise UserError(
                f"--output: {self.path}: cannot be written to: {error.strerror}"
            ) from None
        try:
            self.check(mode)  # one that began and ended in the meantime
            for folder in (self.path, self.checkpoints):
                remove_left_over(folder)
            if mode != "resume":
                self._clear()
            yield
        finally:
            lock.release()

    def check(self, mode: Mode) -> None:
        """Refuse a folder that does not fit how a run is to begin.

        A run of which no round ended blocks nothing. Its lock tells that the files are ours.

        Raises:
            UserError: it holds a run, or files of somebody's, and ``mode`` is ``"new"``; or it
                holds no run and ``mode`` is ``"resume"``.
        """
        if mode == "new" and self._holds_rounds():
            raise UserError(
                f"--output: {self.path}: it already holds a run; go on with --resume, replace it "
                "with --overwrite (in the YAML of a FedML script: tracking_args.resume: true or "
                "tracking_args.overwrite: true), or choose another folder"
            )
        if self._lock.exists():
            return
        found = next((path for path in (*self._files, *self._folders) if path.exists()), None)
        if mode == "new" and found:
            raise UserError(
                f"--output: {found}: it is there already; replace it with --overwrite, or choose "
                "another folder"
            )
        if mode == "resume" and not found:
            raise UserError(
                f"--resume: {self.path}: it holds no run; leave --resume out to begin one"
            )

    def begun(self) -> bool:
        """Tell whether a run wrote its recipe here.

        Raises:
            UserError: it did, but its recipe is gone.
        """
        if self.recipe.exists():
            return True
        if self._holds_rounds():
            raise UserError(
                f"--resume: {self.recipe}: missing: put it back, or replace the run with "
                "--overwrite"
            )
        return False

    def _holds_rounds(self) -> bool:
        if self.summary.exists() or self.model.exists():
            return True
        if self.checkpoints.is_dir() and any(self.checkpoints.iterdir()):
            return True
        if not self.metrics.is_file():
            return False
        with self.metrics.open("rb") as file:
            return file.readline(LONGEST_LINE).endswith(b"\n")

    def _refuse_what_is_no_file(self) -> None:
        """Keep off pipes, on which a run would wait for ever, and links to others' files."""
        for path in (*self._files, *self._folders, self._lock):
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:
                continue
            if path in self._folders and not stat.S_ISDIR(mode):
                raise UserError(f"--output: {path}: not a folder: move it away")
            if path not in self._folders and not stat.S_ISREG(mode):
                raise UserError(f"--output: {path}: not a regular file: move it away")

    def _clear(self) -> None:
        for path in self._files:
            path.unlink(missing_ok=True)
        for path in self._folders:
            if path != self.checkpoints:
                shutil.rmtree(path, ignore_errors=True)


class RunLog:
    """Every log record of the process, FedML's included; held back until the run has a folder."""

    def __init__(self) -> None:
        self._root = logging.getLogger()
        self._level = self._root.level
        self._handler: logging.Handler = MemoryHandler(0, flushLevel=logging.CRITICAL + 1)

    def __enter__(self) -> RunLog:
        self._root.addHandler(self._handler)
        self._root.setLevel(min(self._level, logging.INFO) or logging.INFO)
        return self

    def open(self, path: Path) -> None:
        """Write to this file, from what was held back on."""
        file = _LogFile(path, encoding="utf-8")
        file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        held_back, self._handler = self._handler, file
        self._root.removeHandler(held_back)
        self._root.addHandler(file)
        assert isinstance(held_back, MemoryHandler)
        held_back.setTarget(file)
        held_back.close()  # which flushes

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._root.removeHandler(self._handler)
        self._root.setLevel(self._level)
        self._handler.close()


class _LogFile(logging.FileHandler):
    """Loses records on a full disk: logging's own report of that would hide the run's."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            assert self.stream is not None
            self.stream.write(self.format(record) + self.terminator)
            self.flush()

    def close(self) -> None:
        with suppress(OSError):
            super().close()
