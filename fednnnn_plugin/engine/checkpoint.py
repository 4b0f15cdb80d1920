"""Checkpoints: what a run needs to go on, in files that tell when they are damaged."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from fednnnn_plugin.engine.folder import open_regular, write_atomically
from fednnnn_plugin.errors import UserError

_log = logging.getLogger(__name__)
_NAME = re.compile(r"round-(\d{6,})-([0-9a-f]{32})\.safetensors")
_KEPT = 2
_BLOCK = 1 << 20
_MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class Checkpoint(NamedTuple):
    """What no record says of a round: the served model, and what the rule remembers.

    The generators need no state: each is seeded by (seed, purpose, round, client).
    """

    round: int
    server: dict[str, Tensor]


class CheckpointFolder:
    """Keeps the newest two checkpoints; each file's name holds the digest of its content."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def save(self, server: Mapping[str, Tensor], number: int) -> None:
        """Write a round's checkpoint, then drop all but it and the newest of earlier rounds.

        Later ones are of a run that was resumed from before them.
        """
        self.path.mkdir(exist_ok=True)
        content = safetensors.torch.save(
            {name: tensor.detach().contiguous().cpu() for name, tensor in server.items()}
        )
        digest = hashlib.blake2b(content, digest_size=16).hexdigest()
        new = self.path / f"round-{number:06d}-{digest}.safetensors"
        write_atomically(new, content)
        others = [path for path in self._newest_first() if path != new and not path.is_dir()]
        earlier = [path for path in others if _round(path) < number]
        for path in others:
            if path not in earlier[: _KEPT - 1]:
                path.unlink()

    def load(self, recorded: int) -> Checkpoint | None:
        """Return the newest checkpoint that is whole and on record; warn of others.

        ``recorded`` is how many rounds the metrics hold, from the first one on. If there are whole
        checkpoints, but all of later rounds, it is a ``UserError``.
        """
        late = False
        for path in self._newest_first():
            try:
                checkpoint = _read(path)
            except (OSError, ValueError, SafetensorError) as error:
                _log.warning("%s: damaged checkpoint, trying the one before: %s", path, error)
                continue
            if checkpoint.round <= recorded:
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
        """Remove the checkpoints."""
        for path in self._newest_first():
            path.unlink()

    def _newest_first(self) -> list[Path]:
        named = [path for path in self.path.glob("round-*") if _NAME.fullmatch(path.name)]
        return sorted(named, key=_round, reverse=True)


def _round(path: Path) -> int:
    return int(path.name.split("-")[1])


def _read(path: Path) -> Checkpoint:
    digest = hashlib.blake2b(digest_size=16)
    with open_regular(path, _MEMORY) as opened:
        while block := opened.read(_BLOCK):
            digest.update(block)
    if not path.stem.endswith(digest.hexdigest()):
        raise ValueError("its content does not match the digest in its name")
    return Checkpoint(_round(path), safetensors.torch.load_file(path))
