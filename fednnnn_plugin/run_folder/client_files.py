"""What clients keep from round to round, in a run's folder: a file for each client and round."""

import re
from collections.abc import Callable, Collection, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from fednnnn_plugin.errors import RunError, reason
from fednnnn_plugin.files import MEMORY, errors_named, read_regular, sync

_NAME = re.compile(r"client-(\d{6,})-round-(\d{6,})\.safetensors")


class Place(NamedTuple):
    """Where a client's vectors are: the round that it kept them in, and the file's digest."""

    round: int
    digest: int  # int64


def client_files_in(folder: Path) -> dict[Path, tuple[int, int]]:
    """Return the files, and of each the client and the round."""
    named = ((path, _NAME.fullmatch(path.name)) for path in folder.glob("client-*"))
    return {path: (int(name[1]), int(name[2])) for path, name in named if name}


class ClientFiles:
    """Clients' vectors on disk: none is in memory between rounds, whatever the number of clients.

    A file is never changed: a client that trains again gets another one, so that a run can go back
    to the last checkpoint. What is not on disk for sure, :meth:`sync` puts there.
    """

    def __init__(self, path: Path, check_held: Callable[[], None] = lambda: None) -> None:
        self._path, self._check_held = path, check_held
        self._unsynced: set[Path] = set()

    def write(self, client: int, number: int, vectors: Mapping[str, Tensor]) -> Place:
        """Write what a client keeps in a round."""
        self._check_held()
        content = safetensors.torch.save(dict(vectors))
        path = self._file(client, number)
        with errors_named(path):
            path.parent.mkdir(exist_ok=True)
            path.unlink(missing_ok=True)  # not written into: a copy of the folder may be hard links
            path.write_bytes(content)
        self._unsynced.add(path)
        return Place(number, _digest(content))

    def remove(self, places: Mapping[int, Place]) -> None:
        """Remove what clients kept."""
        for client, place in places.items():
            self._check_held()
            path = self._file(client, place.round)
            with errors_named(path):
                path.unlink(missing_ok=True)

    def read(self, client: int, place: Place) -> dict[str, Tensor]:
        """Return what a client kept."""
        path = self._file(client, place.round)
        try:
            return safetensors.torch.load(self._content(path, place))
        except (OSError, ValueError, SafetensorError) as error:
            raise RunError(f"{path}: {reason(error)}: resume the run") from error

    def check(self, places: Mapping[int, Place]) -> None:
        """Raise ``OSError`` or ``ValueError`` where a file is not what was written."""
        for client, place in places.items():
            self._content(self._file(client, place.round), place)

    def sync(self) -> None:
        """Return when what was written is on the disk."""
        there = [path for path in self._unsynced if path.exists()]
        for path in (*there, *({self._path} if there else ())):
            sync(path)
        self._unsynced.clear()

    def prune(self, rounds: Collection[int]) -> None:
        """Remove the files that the states after these rounds do not have: of later ones, all."""
        files = client_files_in(self._path)
        places, kept = sorted(files.values()), set[tuple[int, int]]()
        for after in rounds:  # of each client the last one by then
            kept.update({client: number for client, number in places if number <= after}.items())
        for path, place in files.items():
            if place not in kept:
                path.unlink(missing_ok=True)

    def _file(self, client: int, number: int) -> Path:
        return self._path / f"client-{client:06d}-round-{number:06d}.safetensors"

    @staticmethod
    def _content(path: Path, place: Place) -> bytes:
        content = read_regular(path, MEMORY)
        if _digest(content) != place.digest:
            raise ValueError("damaged")
        return content


def _digest(content: bytes) -> int:
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "big", signed=True)
