"""The run folder: one run's files, each written whole or not at all, and nobody else's."""

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

from fednnnn_plugin.errors import OUTPUT, OVERWRITE, RESUME, RunError, UserError
from fednnnn_plugin.files import TEMPORARY, is_writable
from fednnnn_plugin.processes.endings import raise_lost_stop, resumable
from fednnnn_plugin.run_folder.client_files import client_files_in
from fednnnn_plugin.run_folder.line_file import LineFile
from fednnnn_plugin.run_folder.results import CLASSES, CLIENTS

Mode = Literal["new", "resume", "overwrite"]

_CHECKPOINT = re.compile(r"round-\d{6,}\.safetensors")
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the checkpoints, ``round-<number>.safetensors``, the newest first."""
    named = [path for path in folder.glob("round-*") if _CHECKPOINT.fullmatch(path.name)]
    return sorted(named, key=round_of, reverse=True)


def round_of(checkpoint: Path) -> int:
    """Return the round of a checkpoint."""
    return int(checkpoint.stem.split("-")[1])


class RunFolder:
    """Paths of a run's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe = path / "recipe.yaml"
        self.fingerprint = path / "fingerprint.json"
        self.metrics = path / "metrics.jsonl"
        self.directions = path / "metric_directions.json"
        self.summary = path / "summary.json"
        self.model = path / "model.safetensors"
        self.checkpoints = path / "checkpoint"
        self.log = path / "fedml.log"
        self.clients = path / "clients"
        self._lock = path / ".lock"
        tables = (path / CLIENTS, path / CLASSES)
        published = path / "metrics.jsonl.gz"
        of_results = (self.metrics, published, self.directions, *tables, self.summary, self.model)
        self._files = (self.recipe, self.fingerprint, *of_results, self.log)
        self._signs = (self._lock, self.fingerprint, self.metrics, published)  # one tells a run
        self._held: os.stat_result | None = None  # the lock's file, while this process has it
        self._tracked = (path / "tensorboard", path / "wandb")  # of those who follow a run

    def check(self, mode: Mode) -> None:
        """Refuse a folder that does not fit how a run is to begin.

        A run of which no round ended blocks nothing. Files without a sign of a run are the user's,
        perhaps the very recipe that is to run. Links may lead to others' files, and on a pipe a run
        would wait for ever.
        """
        if Path(os.path.realpath(self.path)) == Path.cwd():  # a loop of links is no error to it
            raise UserError(OUTPUT, allowed="must name a folder for the run, not the current one")
        folders = (self.checkpoints, self.clients, *self._tracked)
        files = (self._lock, *self._files, *self._of_rounds())
        there = [path for path in (*files, *folders) if os.path.lexists(path)]
        for path in there:
            fits = path.is_dir() if path in folders else path.is_file()
            if path.is_symlink() or not fits:
                kind = "folder" if path in folders else "regular file"
                raise UserError(OUTPUT, f"{path}: not a {kind}", "move it away")
        is_run = self._is_run()
        if mode == "overwrite" and not is_run:
            there = [path for path in there if path not in folders]  # which it leaves
        if mode == "resume" and not is_run:
            allowed = f"leave {RESUME} out to begin one"
            raise UserError(RESUME, f"{self.path}: it holds no run", allowed)
        if mode == "resume" and self.recipe not in there and self.holds_rounds():
            allowed = f"put it back, or begin anew with {OVERWRITE}"
            raise UserError(RESUME, f"{self.recipe}: missing", allowed)
        if mode != "resume" and there and not is_run:
            allowed = "move it away, or choose another folder"
            raise UserError(OUTPUT, f"{there[0]}: not a run's", allowed)
        if mode == "new" and is_run and (self._lock not in there or self.holds_rounds()):
            either = f"continue with {RESUME}, replace it with {OVERWRITE}"
            allowed = f"{either}, or choose another folder"
            raise UserError(OUTPUT, f"{self.path}: it already holds a run", allowed)

    def check_free(self) -> None:
        """Refuse a folder that cannot be made or written to, or that is in use; make none."""
        if not is_writable(self.path / "any"):
            raise UserError(OUTPUT, f"{self.path}: cannot be written to")
        if self._lock.exists():
            with self._writing(), self._acquire():
                pass

    def holds_rounds(self) -> bool:
        """Tell whether a run has finished a round here."""
        if not self._is_run():
            return False
        if self.summary.exists() or self.model.exists() or checkpoints_in(self.checkpoints):
            return True
        return next(LineFile(self.metrics).lines(), b"").endswith(b"\n")

    @contextmanager
    def locked(self, mode: Mode) -> Iterator[None]:
        """Create the folder, tidy it, and keep other runs out while this one lasts.

        A folder that does not fit, is in use or cannot be written to is the user's mistake; a full
        disk is none.
        """
        raise_lost_stop()  # what was stopped while it started leaves no folder
        tracked = self._tracked if self._lock.exists() else ()  # else it is not a run's
        with self._writing():
            self.path.mkdir(parents=True, exist_ok=True)
            held = self._acquire()
            self._held = self._lock.stat()
        with held, resumable():
            self.check(mode)  # again: a run may have begun and ended in the meantime
            self._tidy()
            if mode != "resume":
                for path in (*self._files, *self._of_rounds()):
                    path.unlink(missing_ok=True)
                with suppress(OSError):  # it holds others' files
                    self.clients.rmdir()
                for path in tracked:
                    shutil.rmtree(path, ignore_errors=True)
            yield

    def _is_run(self) -> bool:
        return any(path.exists() for path in self._signs)

    def _of_rounds(self) -> list[Path]:
        return [*checkpoints_in(self.checkpoints), *client_files_in(self.clients)]

    def _acquire(self) -> AbstractContextManager[object]:
        try:
            return FileLock(self._lock, timeout=0).acquire()  # the kernel's: ends with its process
        except Timeout:
            raise UserError(OUTPUT, f"{self.path}: another run is writing to it") from None

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Refuse a folder that cannot be written to; that the disk is full is no mistake."""
        try:
            yield
        except OSError as error:
            if error.errno in _DISK_FULL:
                raise OSError(error.errno, error.strerror, str(self.path)) from error
            raise UserError(
                OUTPUT, f"{self.path}: cannot be written to: {error.strerror}"
            ) from None

    def check_held(self) -> None:
        """Refuse to write where the folder was moved or its lock removed since it was locked.

        Another run may write there by now; the ``RunError`` leaves its records as they are.
        """
        try:
            ours = self._held is None or os.path.samestat(self._lock.stat(), self._held)
        except OSError:
            ours = False
        if not ours:
            raise RunError(
                f"{self.path}: moved, or its .lock removed, while the run was writing to it: "
                "nothing more is written; what was saved is where the folder is now"
            )

    def _tidy(self) -> None:
        """Remove what a process left that died while writing."""
        for folder in (self.path, self.checkpoints):
            for left_over in folder.glob(f".*{TEMPORARY}"):
                left_over.unlink()
