"""Checkpoints: what a run needs to go on, in files that tell when they are damaged."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fednnnn_plugin.engine.folder import open_regular, write_atomically
from fednnnn_plugin.errors import UserError

_log = logging.getLogger(__name__)
_NAME = re.compile(r"round-(\d{6,})-([0-9a-f]{32})\.safetensors")
_KEPT = 2
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Progress:
    """Where a run stands after its last finished round.

    The generators need no state: every draw comes from one seeded by (seed, purpose, round,
    client).
    """

    round: int
    integrated_norm: float
    wall_seconds: float


@dataclass(frozen=True)
class Checkpoint:
    """The served model and the momentum, and how far the run is."""

    progress: Progress
    server: dict[str, Tensor]


class CheckpointFolder:
    """Keeps the newest two checkpoints; each file's name holds the digest of its content."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def save(self, server: Mapping[str, Tensor], progress: Progress) -> None:
        """Write a checkpoint, then drop all but the newest two."""
        self.path.mkdir(exist_ok=True)
        content = safetensors.torch.save(
            {name: tensor.detach().contiguous().cpu() for name, tensor in server.items()},
            metadata={"progress": json.dumps(asdict(progress))},
        )
        digest = _digest(content).hexdigest()
        name = f"round-{progress.round:06d}-{digest}.safetensors"
        write_atomically(self.path / name, content)
        for old in self._removable():
            if old.name != name and self._round(old) >= progress.round:
                old.unlink()  # left by a run that was resumed from an earlier one
        for old in self._removable()[_KEPT:]:
            old.unlink()

    def load(self, recorded: int) -> Checkpoint | None:
        """Return the newest checkpoint that is whole and on record; warn of others.

        Args:
            recorded: how many rounds the metrics hold, from the first one on.

        Raises:
            UserError: there are whole checkpoints, but all of later rounds.
        """
        late = False
        for path in self._newest_first():
            try:
                checkpoint = _read(path)
            except (OSError, ValueError, RecursionError, SafetensorError) as error:
                _log.warning("%s: damaged checkpoint, trying the one before: %s", path, error)
                continue
            if checkpoint.progress.round <= recorded:
                return checkpoint
            late = True
            _log.warning("%s: metrics.jsonl holds only %d whole rounds", path, recorded)
        if late:
            raise UserError(
                f"--resume: {self.path.parent / 'metrics.jsonl'}: line {recorded + 1} is damaged "
                "or missing: mend it, or replace the run with --overwrite"
            )
        return None

    def clear(self) -> None:
        """Remove the checkpoints, and the folder if nothing else is in it."""
        for path in self._newest_first():
            path.unlink()
        if self.path.is_dir() and not any(self.path.iterdir()):
            self.path.rmdir()

    def _newest_first(self) -> list[Path]:
        if not self.path.is_dir():
            return []
        return sorted(
            (path for path in self.path.iterdir() if _NAME.fullmatch(path.name)),
            key=self._round,
            reverse=True,
        )

    def _removable(self) -> list[Path]:
        return [path for path in self._newest_first() if not path.is_dir()]

    @staticmethod
    def _round(path: Path) -> int:
        return int(path.name.split("-")[1])


def _read(path: Path) -> Checkpoint:
    match = _NAME.fullmatch(path.name)
    digest = _digest()
    with open_regular(path, _physical_memory()) as opened:
        while block := opened.read(_BLOCK):
            digest.update(block)
    if match is None or digest.hexdigest() != match[2]:
        raise ValueError("its content does not match the digest in its name")
    with safe_open(path, framework="pt") as file:
        fields = json.loads((file.metadata() or {}).get("progress", "null"))
    if not isinstance(fields, dict) or fields.keys() != Progress.__annotations__.keys():
        raise ValueError("it does not say which round it is of")
    if type(fields["round"]) is not int or fields["round"] != int(match[1]):
        raise ValueError("it is of another round than its name says")
    if not all(_is_amount(fields[name]) for name in ("integrated_norm", "wall_seconds")):
        raise ValueError("its integrated norm or time is not a number")
    return Checkpoint(Progress(**fields), safetensors.torch.load_file(path))


def _digest(content: bytes = b"") -> hashlib.blake2b:
    return hashlib.blake2b(content, digest_size=16)


def _physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _is_amount(value: object) -> bool:
    # Half of the range: what a run adds to it cannot overflow.
    return isinstance(value, int | float) and 0 <= value <= sys.float_info.max / 2
