"""Checkpoints: what a run needs to resume, in files that tell when they are damaged."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from fednnnn_plugin.errors import OVERWRITE, RESUME, UserError, some_of
from fednnnn_plugin.files import write_atomically
from fednnnn_plugin.run_folder.folder import checkpoints_in, round_of
from fednnnn_plugin.run_folder.tensor_files import packed, read_tensors

_log = logging.getLogger(__name__)
_KEPT = 2

#: Raises ``OSError`` or ``ValueError`` where what a checkpoint's tensors refer to is not whole.
Check = Callable[[Mapping[str, Tensor]], None]


class Checkpoint(NamedTuple):
    """What no record says of a round: the served model, and what the rule remembers.

    The generators need no state: each is seeded by (seed, purpose, round, client).
    """

    round: int
    server: dict[str, Tensor]


def save_checkpoint(folder: Path, server: Mapping[str, Tensor], number: int) -> None:
    """Write a round's checkpoint, then drop all but it and the newest of earlier rounds.

    Later ones are of a run that was resumed from before them.
    """
    folder.mkdir(exist_ok=True)
    new = folder / f"round-{number:06d}.safetensors"
    write_atomically(new, packed(server))
    others = [path for path in checkpoints_in(folder) if path != new]
    earlier = [path for path in others if round_of(path) < number]
    for path in others:
        if path not in earlier[: _KEPT - 1]:
            path.unlink()


def load_checkpoint(folder: Path, recorded: int, check: Check | None = None) -> Checkpoint | None:
    """Return the newest checkpoint that is whole and on record; warn of others.

    ``recorded`` is how many rounds the metrics hold, from the first one on. Where there are only
    checkpoints of later rounds, the metrics are damaged: the run is not started over.
    """
    there = checkpoints_in(folder)
    late = [path for path in there if round_of(path) > recorded]
    if late:
        _warn(late, f"metrics.jsonl holds only {recorded} whole rounds")
    found = None
    damaged: dict[Path, str] = {}
    for path in there[len(late) :]:
        try:
            server, _ = read_tensors(path)
            if check:
                check(server)
            found = Checkpoint(round_of(path), server)
            break
        except (OSError, ValueError) as error:
            damaged[path] = str(error)  # its frames have the tensors
    if damaged:
        why = next(iter(damaged.values()))
        _warn([*damaged], f"damaged checkpoint, trying the one before: {why}")
    if late and found is None:
        raise UserError(
            RESUME,
            f"{folder.parent / 'metrics.jsonl'}: line {recorded + 1} is damaged or missing",
            f"mend it, or begin anew with {OVERWRITE}",
        )
    return found


def _warn(passed_over: list[Path], why: str) -> None:
    _log.warning("%s: %s", some_of(passed_over, 1), why)
