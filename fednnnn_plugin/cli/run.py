"""``fednnnn run``, which is also ``fedml run RECIPE.yaml``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from fednnnn_plugin.cli.shared import PATH, on_recipe, one_line_errors

if TYPE_CHECKING:
    from fednnnn_plugin.engine.progress import Follower
    from fednnnn_plugin.engine.records import Summary


@click.command("run", context_settings={"help_option_names": ["-h", "--help"]})
@on_recipe
@click.option(
    "--backend",
    type=click.Choice(["sp", "MPI"]),
    help="Standalone or MPI-distributed; under mpirun it is MPI by itself.",
)
@click.option("--output", type=PATH, help="The run folder; default runs/<recipe>-seed<seed>.")
@click.option("--tensorboard", is_flag=True, help="Also write event files for TensorBoard.")
@click.option("--resume", is_flag=True, help="Go on from the newest checkpoint.")
@click.option("--overwrite", is_flag=True, help="Replace a run that the folder already holds.")
@click.pass_obj
@one_line_errors
def run_command(
    mlops: Callable[[], Follower] | None, /, recipe: str, *, tensorboard: bool, **options: Any
) -> None:
    """Run a recipe: a federation from its YAML file to a run folder.

    RECIPE.yaml is a file, or the name of a recipe that comes with the package
    (see `fednnnn recipes`).
    """
    from fednnnn_plugin.engine.devices import keep_freed_memory
    from fednnnn_plugin.engine.progress import TensorBoard
    from fednnnn_plugin.engine.start import run

    keep_freed_memory()
    followers = [TensorBoard()] if tensorboard else []
    ended = run(recipe, followers=followers, mlops=mlops, **options)
    if ended.summary is not None:
        said = "the run is finished already" if ended.was_finished else _result(ended.summary)
        click.echo(f"{ended.folder}: {said}")


def _result(summary: Summary) -> str:
    if summary.final_test_acc is None or summary.best_test_acc is None:
        return f"{summary.rounds} rounds"
    return (
        f"accuracy {summary.final_test_acc:.4f} after {summary.rounds} rounds, "
        f"best {summary.best_test_acc:.4f} in round {summary.best_round}"
    )
