"""A cross-silo server's files: its state, from which a federation resumes, and its model."""

from collections.abc import Mapping

from torch import Tensor

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.recipe.schema import TrackingArgs
from fednnnn_plugin.run_folder.server_state import (
    file_to_write,
    read_state,
    write_state,
    write_tensors,
)


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
            write_state(self.state_path, tensors, done, method)

    def write_model(self, tensors: Mapping[str, Tensor]) -> None:
        """Write the evaluation model, atomically."""
        if self._model_path is not None:
            write_tensors(self._model_path, tensors)

    def read(self, done: int, method: str) -> dict[str, Tensor] | None:
        """Return the state, None at a first start; refuse what is damaged, or of another run."""
        path, where = self.state_path, f"server_state_path: {self.state_path}"
        if path is None or not path.exists():
            if done:
                raise UserError(
                    f"train_args.start_round: {done}: there is no state to start from at {where}"
                )
            return None
        tensors, found = read_state(path, "server_state_path", method)
        if found != done:
            raise UserError(
                f"{where}: the state is of round {found}, start_round is {done}: set start_round: "
                f"{found} and comm_round to the rounds that remain, or move the file away to start "
                "anew"
            )
        return tensors
