"""Who follows a run while it lasts."""

from pathlib import Path

from fednnnn_plugin.quantities import RoundRecord


class Follower:
    """Base class of objects that are notified of a run's progress, on rank 0.

    A subclass overrides the methods that it needs. All are called in the thread that runs the
    federation. An exception in one of them ends the run, whose last finished round is saved.
    """

    def begin(self, folder: Path, finished: int) -> None:
        """Called before the first round; ``finished`` rounds are already in the folder."""

    def client_done(self, round_number: int, done: int, of: int) -> None:
        """Called when this process has trained ``done`` of its ``of`` clients of a round."""

    def round_done(self, record: RoundRecord) -> None:
        """Called when a round has ended."""

    def end(self) -> None:
        """Called at the end, also of a run that failed: close what :meth:`begin` has opened."""


def figures(record: RoundRecord) -> str:
    """Return what a person looks at first in a round."""
    tested = [f"{name} {value:.4g}" for name, value in (record.test_metrics or {}).items()]
    if record.test_acc is not None:
        tested.append(f"accuracy {record.test_acc:.4f}")
    if not tested and record.test_loss is not None:
        tested.append(f"loss {record.test_loss:.4f}")
    ratio = record.mean_update_norm / record.mean_client_norm if record.mean_client_norm else 0.0
    dropped = f"  {record.rejected} rejected" if record.rejected else ""
    return f"{'  '.join(tested) or 'not tested'}  N/E {ratio:.3f}{dropped}"
