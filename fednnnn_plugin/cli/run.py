"""``fednnnn run``, which is also ``fedml run RECIPE.yaml``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fednnnn_plugin.cli.shared import allow_code_option, one_line_errors, overrides_option
from fednnnn_plugin.engine.endings import signals_raised

if TYPE_CHECKING:
    from fednnnn_plugin.engine.progress import Follower
    from fednnnn_plugin.engine.start import Run


@click.command("run", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("recipe", metavar="RECIPE.yaml")
@overrides_option
@click.option(
    "--backend",
    type=click.Choice(["sp", "MPI"]),
    help="Standalone or MPI-distributed; under mpirun it is MPI by itself.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="The run folder; default runs/<recipe>-seed<seed>.",
)
@click.option("--tensorboard", is_flag=True, help="Also write event files for TensorBoard.")
@click.option("--resume", is_flag=True, help="Go on from the newest checkpoint.")
@click.option("--overwrite", is_flag=True, help="Replace a run that the folder already holds.")
@allow_code_option
@click.pass_obj
@one_line_errors
def run_command(
    mlops: Callable[[], Follower] | None,
    recipe: str,
    overrides: tuple[str, ...],
    backend: str | None,
    output: Path | None,
    tensorboard: bool,
    resume: bool,
    overwrite: bool,
    allow_code: bool,
) -> None:
    """Run a recipe: a federation from its YAML file to a run folder.

    RECIPE.yaml is a file, or the name of a recipe that comes with the package
    (see `fednnnn recipes`).
    """
    from fednnnn_plugin.engine.devices import keep_freed_memory
    from fednnnn_plugin.engine.progress import TensorBoard
    from fednnnn_plugin.engine.start import run

    keep_freed_memory()
    with signals_raised():
        ended = run(
            recipe,
            overrides=overrides,
            output=output,
            resume=resume,
            overwrite=overwrite,
            allow_code=allow_code,
            backend=backend,
            followers=[TensorBoard()] if tensorboard else [],
            mlops=mlops,
        )
    if ended.summary is not None:
        click.echo(_closing_line(ended))


def _closing_line(ended: Run) -> str:
    summary = ended.summary
    assert summary is not None
    if ended.was_finished:
        return f"{ended.folder}: the run is finished already"
    if summary.final_test_acc is None or summary.best_test_acc is None:
        return f"{ended.folder}: {summary.rounds} rounds"
    return (
        f"{ended.folder}: accuracy {summary.final_test_acc:.4f} after {summary.rounds} rounds, "
        f"best {summary.best_test_acc:.4f} in round {summary.best_round}"
    )
