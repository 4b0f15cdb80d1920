"""The run folder: one run's files, and nobody else's."""

from __future__ import annotations

import errno
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

from fednnnn_plugin.engine.checkpoint import CheckpointFolder
from fednnnn_plugin.engine.files import remove_left_over, write_atomically
from fednnnn_plugin.engine.records import MetricsFile
from fednnnn_plugin.errors import UserError

Mode = Literal["new", "resume", "overwrite"]

_LOCK = ".lock"
_TRACKED = ("tensorboard", "wandb")  # folders that followers of a run write
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class RunFolder:
    """Paths of a run's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe = path / "recipe.yaml"
        self.metrics = MetricsFile(path / "metrics.jsonl")
        self.summary = path / "summary.json"
        self.model = path / "model.safetensors"
        self.checkpoints = CheckpointFolder(path / "checkpoint")
        self.log = path / "fedml.log"

    @property
    def _files(self) -> tuple[Path, ...]:
        return (
            self.recipe,
            self.metrics.path,
            self.summary,
            self.model,
            self.checkpoints.path,
            self.log,
            *(self.path / name for name in _TRACKED),
        )

    @contextmanager
    def locked(self, mode: Mode) -> Iterator[None]:
        """Create the folder and keep other runs out of it while this one lasts.

        A lock is the kernel's, so it ends with its process.

        Raises:
            UserError: the folder holds a run and ``mode`` is ``"new"``; another run is writing to
                it; it cannot be created or written to; something else is in a file's place.
            OSError: the disk is full.
        """
        try:
            self.refuse_a_run(mode)
            self._refuse_what_is_no_file()
            self.path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.path / _LOCK, timeout=0)
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
            self.refuse_a_run(mode)  # one that began and ended in the meantime
            for folder in (self.path, self.checkpoints.path):
                remove_left_over(folder)
            if mode == "overwrite":
                self._clear()
            yield
        finally:
            lock.release()

    def refuse_a_run(self, mode: Mode) -> None:
        """Refuse a folder that holds a run where ``mode`` is ``"new"``.

        Raises:
            UserError: it does.
        """
        if mode == "new" and any(path.exists() for path in self._files):
            raise UserError(
                f"--output: {self.path}: it already holds a run; go on with --resume, replace it "
                "with --overwrite (in the YAML of a FedML script: tracking_args.resume: true or "
                "tracking_args.overwrite: true), or choose another folder"
            )

    def _refuse_what_is_no_file(self) -> None:
        """Keep off pipes, on which a run would wait for ever, and links to others' files."""
        for path in (*self._files, self.path / _LOCK):
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:
                continue
            folder = path == self.checkpoints.path or path.name in _TRACKED
            if folder and not stat.S_ISDIR(mode):
                raise UserError(f"--output: {path}: not a folder: move it away")
            if not folder and not stat.S_ISREG(mode):
                raise UserError(f"--output: {path}: not a regular file: move it away")

    def holds_a_run(self) -> bool:
        """Tell whether a run began here.

        Raises:
            UserError: it did, but its recipe is gone.
        """
        if self.recipe.exists():
            return True
        if any(path.exists() for path in self._files if path != self.log):
            raise UserError(
                f"--resume: {self.recipe}: missing: put it back, or replace the run with "
                "--overwrite"
            )
        return False

    def _clear(self) -> None:
        self.checkpoints.clear()
        for path in self._files:
            if path.name in _TRACKED:
                shutil.rmtree(path, ignore_errors=True)
            elif path.is_dir():
                continue  # what is left in checkpoint/ is not ours
            else:
                path.unlink(missing_ok=True)

    def write_recipe(self, text: str) -> None:
        """Write the resolved recipe."""
        write_atomically(self.recipe, text.encode())
