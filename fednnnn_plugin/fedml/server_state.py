"""The server's state on disk: what a federation needs to go on after all its processes ended."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fednnnn_plugin.engine.files import write_atomically
from fednnnn_plugin.errors import UserError, printable

_STANDING, _DIGEST = "standing", "digest"


def file_to_write(key: str, text: str | None) -> Path | None:
    """Return where a file can be written, in a folder that is there from now on."""
    if text is None:
        return None
    path, where = Path(text).expanduser().resolve(), f"{key}: {printable(text)}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            raise UserError(f"{where}: is no regular file; must be one, or not be there")
        # Of the length of the temporary file's name that the file is written under.
        with NamedTemporaryFile(prefix=f".{path.name}", suffix=".try", dir=path.parent):
            return path
    except OSError as error:
        raise UserError(f"{where}: cannot be written: {error.strerror}") from None


def write_state(path: Path, tensors: Mapping[str, Tensor], done: int, method: str) -> None:
    """Write the served model and what the rule remembers, atomically; ``done`` rounds of it."""
    content = {
        name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()
    }
    text = json.dumps({"round": done, "method": method})
    standing = {_STANDING: text, _DIGEST: _digest(text, content)}
    write_atomically(path, safetensors.torch.save(content, metadata=standing))


def read_state(path: Path, done: int, method: str) -> dict[str, Tensor]:
    """Return what :func:`write_state` wrote; refuse what is damaged, or of another run."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
        tensors: dict[str, Tensor] = safetensors.torch.load_file(path)
        text = metadata[_STANDING]
        if metadata[_DIGEST] != _digest(text, tensors):
            raise ValueError("its content does not match its digest")
        found = json.loads(text)
    except (OSError, ValueError, LookupError, TypeError, SafetensorError) as error:
        raise UserError(f"server_state_path: {path}: not a whole server state: {error}") from None
    if found["round"] != done:
        raise UserError(
            f"server_state_path: {path}: the state is of round {found['round']}, start_round is "
            f"{done}: set start_round: {found['round']} and comm_round to the rounds that remain, "
            "or move the file away to start anew"
        )
    if found["method"] != method:
        raise UserError(
            f"server_state_path: {path}: the state is of {found['method']}, not of {method}"
        )
    return tensors


def _digest(text: str, tensors: dict[str, Tensor]) -> str:
    content = safetensors.torch.save(tensors, metadata={_STANDING: text})
    return hashlib.blake2b(content, digest_size=16).hexdigest()
