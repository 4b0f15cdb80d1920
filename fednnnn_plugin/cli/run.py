"""``fednnnn run``, which is also ``fedml run RECIPE.yaml``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fednnnn_plugin.cli.shared import allow_code_option, one_line_errors, overrides_option
from fednnnn_plugin.endings import ending_together, signals_raised
from fednnnn_plugin.errors import UserError

if TYPE_CHECKING:
    from fednnnn_plugin.engine.folder import Mode
    from fednnnn_plugin.engine.summary import Summary
    from fednnnn_plugin.recipe import Recipe


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
@one_line_errors
def run_command(
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
    from fednnnn_plugin.engine.heap import keep_freed_memory
    from fednnnn_plugin.recipe import find_recipe, load_recipe

    keep_freed_memory()
    if resume and overwrite:
        raise UserError("--resume, --overwrite: give one of them")
    if output == Path():
        raise UserError("--output: must name a folder for the run, not the current one")
    loaded = load_recipe(find_recipe(recipe), overrides)
    mode: Mode = "resume" if resume else "overwrite" if overwrite else "new"
    with signals_raised():
        _run(
            loaded,
            output or default_folder(loaded),
            mode,
            backend,
            tensorboard=tensorboard,
            allow_code=allow_code,
        )


def default_folder(recipe: Recipe) -> Path:
    """Return ``runs/<recipe>-seed<seed>``."""
    return Path("runs") / f"{recipe.name}-seed{recipe.common_args.random_seed}"


def _run(
    recipe: Recipe,
    folder: Path,
    mode: Mode,
    backend: str | None,
    *,
    tensorboard: bool,
    allow_code: bool,
) -> None:
    from fednnnn_plugin.engine import tracking
    from fednnnn_plugin.engine.launch import choose_ranks, run_recipe
    from fednnnn_plugin.engine.progress import ProgressDisplay

    followers = tracking.followers(recipe)
    if tensorboard:
        followers.append(tracking.tensorboard())
    asked_for = "MPI" if recipe.comm_args.backend == "MPI" else None  # sp is every recipe's default
    ranks = choose_ranks(backend or asked_for)
    with (
        ending_together(ranks),
        ProgressDisplay(recipe.train_args.comm_round) as display,
    ):
        summary = run_recipe(
            recipe,
            folder,
            mode,
            ranks=ranks,
            on_round=display.show,
            followers=followers,
            allow_code=allow_code,
        )
    if ranks.rank == 0:
        click.echo(_closing_line(folder, summary))


def _closing_line(folder: Path, summary: Summary | None) -> str:
    if summary is None:
        return f"{folder}: the run is finished already"
    return (
        f"{folder}: accuracy {summary.final_test_acc:.4f} after {summary.rounds} rounds, "
        f"best {summary.best_test_acc:.4f} in round {summary.best_round}"
    )
