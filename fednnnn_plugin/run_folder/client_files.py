"""What clients keep from round to round, in a run's folder: a file for each client and round."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from torch import Tensor

from fednnnn_plugin.errors import RunError, reason
from fednnnn_plugin.files import errors_named, sync
from fednnnn_plugin.run_folder.tensor_files import packed, read_tensors

_NAME = re.compile(r"client-(\d{6,})-round-(\d{6,})\.safetensors")


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

    def write(self, client: int, number: int, vectors: Mapping[str, Tensor]) -> None:
        """Write what a client keeps in a round."""
        self._check_held()
        content = packed(vectors)
        path = self._file(client, number)
        with errors_named(path):
            path.parent.mkdir(exist_ok=True)
            path.unlink(missing_ok=True)  # not written into: a copy of the folder may be hard links
            path.write_bytes(content)
        self._unsynced.add(path)

    def remove(self, clients: Iterable[int], number: int) -> None:
        """Remove what clients kept in a round."""
        for client in clients:
            self._check_held()
            path = self._file(client, number)
            with errors_named(path):
                path.unlink(missing_ok=True)

    def read(self, client: int, number: int) -> dict[str, Tensor]:
        """Return what a client kept in a round."""
        path = self._file(client, number)
        try:
            return read_tensors(path)[0]
        except (OSError, ValueError) as error:
            raise RunError(f"{path}: {reason(error)}: resume the run") from error

    def check(self, kept: Mapping[int, int]) -> None:
        """Raise ``OSError`` or ``ValueError`` where what a client kept in a round is not whole."""
        for client, number in kept.items():
            read_tensors(self._file(client, number))

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
