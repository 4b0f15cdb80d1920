"""A server's state in a file: what a federation needs to continue after its process ended."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import torch
from torch import Tensor

from fednnnn_plugin.errors import UserError, printable, shown
from fednnnn_plugin.files import is_writable, user_path, write_atomically
from fednnnn_plugin.run_folder.tensor_files import packed, read_tensors
from fednnnn_plugin.server.server import Server, ServerState

_log = logging.getLogger(__name__)
EVALUATION = "..evaluation."  # before its names in a state, where no other begins so
_OTHER_MODEL = "the state is of another model, or other parameters of it were trained"
# What a restart may have otherwise, and no round shows.
_OF_A_START = (
    *("start_round", "comm_round", "server_state_path", "keep_states"),
    *("metrics_path", "save_path", "prometheus_path"),
    *("warn_norm_ratio", "warn_alignment", "warn_weight_share"),
)

#: What a state is of, as JSON has it: the ``round`` that was the last, the ``method``, the names of
#: what is ``trained``, and the server's ``settings`` by section.
Standing = Mapping[str, Any]


def file_to_write(key: str, text: str | Path | None, *, only_check: bool = False) -> Path | None:
    """Return where a file can be written, in a folder that is there from now on.

    To ``only_check`` writes nothing, and finds what can be found so.
    """
    if text is None:
        return None
    path, where = user_path(text).resolve(), f"{key}: {printable(text)}"
    try:
        if path.exists() and not path.is_file():
            raise UserError(where, "is no regular file", "must be one, or not be there")
        if only_check:
            if not is_writable(path):
                raise UserError(where, "cannot be written to")
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        # Of the length of the temporary file's name that the file is written under.
        with NamedTemporaryFile(prefix=f".{path.name}", suffix=".try", dir=path.parent):
            return path
    except OSError as error:
        raise UserError(where, f"cannot be written: {error.strerror}") from None


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors as a safetensors file, atomically."""
    write_atomically(path, packed(tensors))


def standing(server: Server, settings: Mapping[str, Any], done: int) -> Standing:
    """Return what a server's state is of, after ``done`` rounds."""
    trained = [entry.name for entry in server.layout.entries]
    return {"round": done, "method": server.rule.name, "trained": trained, "settings": settings}


def write_state(path: Path, tensors: Mapping[str, Tensor], of: Standing) -> None:
    """Write a server's tensors with what they are of, atomically."""
    write_atomically(path, packed(tensors, of))


def read_state(
    path: Path, key: str, method: str | None = None
) -> tuple[dict[str, Tensor], Standing]:
    """Return the tensors, and what they are of.

    Raises:
        UserError: the file, which the setting ``key`` names, is damaged, or of another method.
    """
    try:
        tensors, found = read_tensors(path)
        of = found["method"]
    except (OSError, ValueError, LookupError) as error:
        raise UserError(key, f"{path}: not a whole server state: {error}") from None
    if method not in (None, of):
        raise UserError(key, f"{path}: the state is of {of}, not of {method}")
    return tensors, found


def check_continued(before: Standing, now: Standing, where: str) -> None:
    """Refuse a state of other trained parameters; warn of other settings."""
    if before["trained"] != now["trained"]:
        raise UserError(where, _OTHER_MODEL)
    for section, values in now["settings"].items():
        old = before["settings"].get(section, {})
        for key in {**old, **values}:
            stored, value = old.get(key), values.get(key)
            if key not in _OF_A_START and stored != value:
                _log.warning(
                    "%s: %s: %s, but %s up to round %d; records, if kept, show the new value for "
                    "all rounds from the next one on",
                    *(where, key, shown(value), shown(stored), before["round"]),
                )


def restored(server: Server, tensors: Mapping[str, Tensor], where: str) -> ServerState:
    """Return a server's state from its tensors; one without an evaluation model has the served.

    Raises:
        UserError: it is of another model, or others of its parameters were trained.
    """
    rest = dict(tensors)
    names = [name for name in tensors if name.startswith(EVALUATION)]
    evaluation = {name.removeprefix(EVALUATION): rest.pop(name) for name in names}
    state = server.restore(rest, torch.device("cpu"))
    if state is None or (evaluation and evaluation.keys() != server.layout.forms.keys()):
        raise UserError(where, _OTHER_MODEL)
    return replace(state, evaluation=server.layout.gather(evaluation)) if evaluation else state
