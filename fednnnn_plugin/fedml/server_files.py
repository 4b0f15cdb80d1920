"""A cross-silo server's files: its state, from which a federation resumes, and its model."""

import glob
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

from torch import Tensor

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.recipe.schema import TrackingArgs
from fednnnn_plugin.run_folder.server_state import (
    Standing,
    file_to_write,
    read_state,
    write_state,
    write_tensors,
)

_log = logging.getLogger(__name__)


class ServerFiles:
    """A server's files: the state that a resumed federation starts from, and the evaluation model.

    The state is the served model and what the rule remembers, with the rounds that are done and
    the method. Both are optional. Of the last ``keep_states`` rounds both are kept beside the
    state, as ``NAME.round-12`` and ``NAME.round-12.model``: a start from one of them goes back.

    Raises:
        UserError: one of them cannot be written there.
    """

    def __init__(self, tracking: TrackingArgs, *, only_check: bool = False) -> None:
        state, model = tracking.server_state_path, tracking.save_path
        self.state_path = file_to_write("server_state_path", state, only_check=only_check)
        self._model_path = file_to_write("save_path", model, only_check=only_check)
        self._kept = tracking.keep_states if self.state_path is not None else 0
        if self._model_path is not None and self._model_path == self.state_path:
            raise UserError("save_path", f"{model}: is the server_state_path too")

    def write_state(self, tensors: Mapping[str, Tensor], of: Standing) -> None:
        """Write the state, atomically: before the model, as the round is lost without it."""
        if self.state_path is None:
            return
        write_state(self.state_path, tensors, of)
        done: int = of["round"]
        if self._kept > 1:
            write_state(self._of_round(done), tensors, of)
        for number, path in self._every_kept():
            if not done - self._kept < number <= done:
                path.unlink(missing_ok=True)

    def write_model(self, tensors: Mapping[str, Tensor], done: int) -> None:
        """Write the evaluation model, atomically."""
        if self._model_path is not None:
            write_tensors(self._model_path, tensors)
        if self._kept > 1:
            write_tensors(self._of_round(done, ".model"), tensors)

    def read(self, done: int, method: str) -> tuple[dict[str, Tensor], Standing] | None:
        """Return the state, None at a first start; refuse what is damaged, or of another run."""
        path, where = self.state_path, f"server_state_path: {self.state_path}"
        if path is None or not path.exists():
            if done:
                raise UserError(
                    "train_args.start_round", f"{done}: there is no state to start from at {where}"
                )
            return None
        tensors, of = read_state(path, "server_state_path", method)
        found: int = of["round"]
        if found != done and self._of_round(done).exists():
            back = "%s: the newest state is of round %d: start_round %d goes back, and drops the "
            _log.warning(back + "states and records of the rounds after it", where, found, done)
            tensors, of = read_state(self._of_round(done), "server_state_path", method)
        if of["round"] != done:
            kept = sorted({number for number, _ in self._every_kept()} - {found})
            back = f"start_round to a kept round ({', '.join(map(str, kept))}), " if kept else ""
            raise UserError(
                where,
                f"the state is of round {found}, start_round is {done}",
                f"set start_round: {found} and comm_round to the rounds that remain, {back}or "
                "move the file away to start anew",
            )
        return tensors, of

    def _of_round(self, done: int, kind: str = "") -> Path:
        assert self.state_path is not None
        return self.state_path.with_name(f"{self.state_path.name}.round-{done}{kind}")

    def _every_kept(self) -> Iterator[tuple[int, Path]]:
        """Yield every state and model that is kept of a round."""
        assert self.state_path is not None
        before = f"{self.state_path.name}.round-"
        for path in list(self.state_path.parent.glob(f"{glob.escape(before)}*")):
            number, _, kind = path.name.removeprefix(before).partition(".")
            if number.isdecimal() and kind in ("", "model"):
                yield int(number), path
