"""A server's state in a file: what a federation needs to continue after its process ended."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import NamedTemporaryFile

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from fednnnn_plugin.errors import UserError, printable
from fednnnn_plugin.files import user_path, write_atomically
from fednnnn_plugin.server.server import Server, ServerState
from fednnnn_plugin.tensor_files import read_tensors

_STANDING, _DIGEST = "standing", "digest"
EVALUATION = "..evaluation."  # before its names in a state, where no other begins so


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
            above = next(folder for folder in path.parents if folder.exists())
            if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
                kind = "is not writable" if above.is_dir() else "is no folder"
                raise UserError(where, f"cannot be written: {printable(above)} {kind}")
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        # Of the length of the temporary file's name that the file is written under.
        with NamedTemporaryFile(prefix=f".{path.name}", suffix=".try", dir=path.parent):
            return path
    except OSError as error:
        raise UserError(where, f"cannot be written: {error.strerror}") from None


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors as a safetensors file, atomically."""
    write_atomically(path, safetensors.torch.save(_on_cpu(tensors)))


def write_state(path: Path, tensors: Mapping[str, Tensor], done: int, method: str) -> None:
    """Write a server's tensors with the rounds that are done and the method, atomically."""
    content, text = _on_cpu(tensors), json.dumps({"round": done, "method": method})
    metadata = {_STANDING: text, _DIGEST: _digest(text, content)}
    write_atomically(path, safetensors.torch.save(content, metadata=metadata))


def read_state(path: Path, key: str, method: str | None = None) -> tuple[dict[str, Tensor], int]:
    """Return the tensors and the rounds that are done.

    Raises:
        UserError: the file, which the setting ``key`` names, is damaged, or of another method.
    """
    try:
        tensors, metadata = read_tensors(path)
        text = metadata[_STANDING]
        if metadata[_DIGEST] != _digest(text, tensors):
            raise ValueError("its content does not match its digest")
        found = json.loads(text)
    except (OSError, ValueError, LookupError, TypeError, SafetensorError) as error:
        raise UserError(key, f"{path}: not a whole server state: {error}") from None
    if method not in (None, found["method"]):
        raise UserError(key, f"{path}: the state is of {found['method']}, not of {method}")
    return tensors, int(found["round"])


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
        why = "the state is of another model, or other parameters of it were trained"
        raise UserError(where, why)
    return replace(state, evaluation=server.layout.gather(evaluation)) if evaluation else state


def _on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()
    }


def _digest(text: str, tensors: dict[str, Tensor]) -> str:
    content = safetensors.torch.save(tensors, metadata={_STANDING: text})
    return hashlib.blake2b(content, digest_size=16).hexdigest()
