"""The server's state on disk: what a federation needs to resume after all its processes ended."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fednnnn_plugin.errors import UserError, printable
from fednnnn_plugin.files import write_atomically
from fednnnn_plugin.recipe.schema import TrackingArgs

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


class ServerFiles:
    """A server's files: the state that a resumed federation starts from, and the evaluation model.

    The state is the served model and what the rule remembers, with the rounds that are done and
    the method. Both are optional.

    Raises:
        UserError: one of them cannot be written there.
    """

    def __init__(self, tracking: TrackingArgs) -> None:
        self.state_path = file_to_write("server_state_path", tracking.server_state_path)
        self._model_path = file_to_write("save_path", tracking.save_path)
        if self._model_path is not None and self._model_path == self.state_path:
            raise UserError(f"save_path: {tracking.save_path}: is the server_state_path too")

    def write_state(self, tensors: Mapping[str, Tensor], done: int, method: str) -> None:
        """Write the state, atomically: before the model, as the round is lost without it."""
        if self.state_path is not None:
            content, text = _on_cpu(tensors), json.dumps({"round": done, "method": method})
            train_state = {_STANDING: text, _DIGEST: _digest(text, content)}
            write_atomically(self.state_path, safetensors.torch.save(content, metadata=train_state))

    def write_model(self, tensors: Mapping[str, Tensor]) -> None:
        """Write the evaluation model, atomically."""
        if self._model_path is not None:
            write_atomically(self._model_path, safetensors.torch.save(_on_cpu(tensors)))

    def read(self, done: int, method: str) -> dict[str, Tensor] | None:
        """Return the state, None at a first start; refuse what is damaged, or of another run."""
        path, where = self.state_path, f"server_state_path: {self.state_path}"
        if path is None or not path.exists():
            if done:
                raise UserError(
                    f"train_args.start_round: {done}: there is no state to start from at {where}"
                )
            return None
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
            tensors: dict[str, Tensor] = safetensors.torch.load_file(path)
            text = metadata[_STANDING]
            if metadata[_DIGEST] != _digest(text, tensors):
                raise ValueError("its content does not match its digest")
            found = json.loads(text)
        except (OSError, ValueError, LookupError, TypeError, SafetensorError) as error:
            raise UserError(f"{where}: not a whole server state: {error}") from None
        if found["round"] != done:
            raise UserError(
                f"{where}: the state is of round {found['round']}, start_round is {done}: set "
                f"start_round: {found['round']} and comm_round to the rounds that remain, or move "
                "the file away to start anew"
            )
        if found["method"] != method:
            raise UserError(f"{where}: the state is of {found['method']}, not of {method}")
        return tensors


def _on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()
    }


def _digest(text: str, tensors: dict[str, Tensor]) -> str:
    content = safetensors.torch.save(tensors, metadata={_STANDING: text})
    return hashlib.blake2b(content, digest_size=16).hexdigest()
