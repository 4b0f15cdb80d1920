"""The ``fednnnn`` command; ``fedml run RECIPE.yaml`` is its ``run``.

Exit status: 0 done, 2 a mistake of the user's (one line each), 1 a run that cannot go on,
130 and 143 interrupted by SIGINT and SIGTERM.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec

import click

from fednnnn_plugin import __version__
from fednnnn_plugin.endings import Terminated, ending, ending_together, signals_raised
from fednnnn_plugin.engine.launcher import launched_rank, launched_ranks
from fednnnn_plugin.errors import RunError, UserError

if TYPE_CHECKING:
    from fednnnn_plugin.engine.folder import Mode
    from fednnnn_plugin.engine.summary import Summary
    from fednnnn_plugin.recipe import Recipe

P = ParamSpec("P")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """FedNNNN, norm-normalised federated learning, for FedML."""


def one_line_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Print the user's mistakes without a traceback and exit with the right status."""

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except (UserError, RunError, OSError, KeyboardInterrupt, Terminated) as error:
            message, status = ending(error)
            if launched_rank() == 0:  # the other ranks have the same mistake to report
                click.echo(message, err=True)
            sys.exit(status)

    return wrapped


overrides_option = click.option(
    "--set",
    "overrides",
    metavar="section.key=value",
    multiple=True,
    help="Override a recipe key, such as train_args.comm_round=3; may be repeated.",
)
allow_code_option = click.option(
    "--allow-code",
    is_flag=True,
    help="Let the recipe's data_args.dataset MODULE:FUNCTION run: for recipes that you trust.",
)


@main.command("run", context_settings={"help_option_names": ["-h", "--help"]})
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
    if recipe.common_args.using_mlops:
        from fednnnn_plugin.fedml.mlops import mlops

        followers.append(mlops)
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


@main.command("tune")
@click.argument("recipe", metavar="RECIPE.yaml")
@overrides_option
@click.option(
    "--grid",
    "grids",
    metavar="KEY=START:STOP:STEP",
    multiple=True,
    help="Search this key, over a range with both ends or values between commas; may be repeated. "
    "Only what is named is searched; default: the paper's grids.",
)
@click.option("--rounds", type=int, help="Rounds of a trial; default: the paper's for the data.")
@click.option("--validation", type=float, help="Share of the training images to judge on; 1/6.")
@click.option("--metric", help="best_accuracy (default), final_accuracy or final_loss.")
@click.option("--prune", is_flag=True, default=None, help="Stop trials far behind the others.")
@click.option(
    "--settings",
    type=click.Path(path_type=Path),
    help="A YAML file with grids, rounds, validation, metric, prune; options come before it.",
)
@click.option(
    "--study",
    type=click.Path(path_type=Path),
    help="The study folder; default studies/<recipe>-seed<seed>.",
)
@click.option("--jobs", default=1, show_default=True, help="Trials side by side.")
@click.option("--resume", is_flag=True, help="Go on with the study; no finished trial is repeated.")
@one_line_errors
def tune_command(
    recipe: str,
    overrides: tuple[str, ...],
    grids: tuple[str, ...],
    study: Path | None,
    settings: Path | None,
    jobs: int,
    resume: bool,
    **options: object,
) -> None:
    """Find a recipe's hyperparameters by the paper's procedure.

    Part of the training images is held out; the learning rate is chosen on FedAvg under the
    paper's non-IID-B, then the method's own coefficients, by grid search. Further processes, on
    other machines too, join with --resume on the same study folder.
    """
    from fednnnn_plugin.engine.heap import keep_freed_memory
    from fednnnn_plugin.recipe import find_recipe, load_recipe
    from fednnnn_plugin.tune.grid import parse_option
    from fednnnn_plugin.tune.run import open_study, say_at_once, search
    from fednnnn_plugin.tune.settings import Settings, checked_settings, read_settings
    from fednnnn_plugin.tune.study import StudyFolder

    keep_freed_memory()
    if launched_ranks() > 1:
        raise UserError("tune: start one process; --jobs N starts more, --resume joins a study")
    if jobs < 1:
        raise UserError(f"--jobs: {jobs}: must be at least 1")
    if grids:
        options["grids"] = {key: list(values) for key, values in map(parse_option, grids)}
    path = find_recipe(recipe)
    loaded = load_recipe(path, overrides)
    given = checked_settings({k: v for k, v in options.items() if v is not None}, "--")
    given = (read_settings(settings) if settings else Settings()).updated(given)
    default = f"{loaded.name}-seed{loaded.common_args.random_seed}"
    folder = StudyFolder(study or Path("studies") / default)
    with signals_raised():
        open_study(folder, path, overrides, given, resume=resume)
        found = search(folder, jobs, say_at_once)
    values = ", ".join(f"{key} {value:g}" for key, value in found.values.items())
    if found.pruned:
        click.echo(f"pruner: {found.pruned} of {found.trials} trials were stopped early")
    click.echo(f"best: {values}\nrecipe: {found.recipe}")


@main.command("report")
@click.argument("runs", metavar="RUN...", nargs=-1, type=click.Path(path_type=Path), required=True)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("report"),
    show_default=True,
    help="Where tables, figures and index.html go.",
)
@click.option(
    "--layer",
    "layers",
    metavar="NAME",
    multiple=True,
    help="A module whose norms to show, such as fc3; may be repeated. Default: the paper's.",
)
@click.option(
    "--target", type=float, help="An accuracy, such as 0.9: which round reaches it first."
)
@one_line_errors
def report_command(
    runs: tuple[Path, ...], out: Path, layers: tuple[str, ...], target: float | None
) -> None:
    """Make tables, figures and a page from run folders, or folders of them."""
    from fednnnn_plugin.report.build import build_report

    report = build_report(runs, out, layers=layers, target=target)
    for warning in report.warnings:
        click.echo(f"warning: {warning}", err=True)
    click.echo(report.text)
    click.echo(f"page: {report.page}")


@main.command("partition")
@click.argument("recipe", metavar="RECIPE.yaml")
@overrides_option
@click.option("--plot", type=click.Path(path_type=Path), help="Also a picture: .svg, .pdf or .png.")
@allow_code_option
@one_line_errors
def partition_command(
    recipe: str, overrides: tuple[str, ...], plot: Path | None, allow_code: bool
) -> None:
    """Show how a recipe deals its training images to the clients."""
    from fednnnn_plugin.data.federated import load_federated
    from fednnnn_plugin.engine.launch import data_spec
    from fednnnn_plugin.recipe import find_recipe, load_recipe
    from fednnnn_plugin.report.partition_figure import plot_partition
    from fednnnn_plugin.report.partition_view import partition_summary

    spec = data_spec(load_recipe(find_recipe(recipe), overrides), allow_code=allow_code)
    data = load_federated(spec)
    summary = partition_summary(
        data.train_labels.numpy(),
        [indices.numpy() for indices in data.client_indices],
        dataset=spec.dataset,
        method=spec.partition_method,
        sizes=spec.partition_sizes,
        classes_per_client=spec.classes_per_client,
        power_law_exponent=spec.power_law_exponent,
        min_samples=spec.min_samples,
    )
    click.echo(summary.text(), nl=False)
    if plot:
        plot_partition(summary, plot)
        click.echo(f"picture: {plot}")


@main.group("recipes", invoke_without_command=True)
@click.pass_context
def recipes_command(context: click.Context) -> None:
    """List the recipes that come with the package, and whether their data is present."""
    if context.invoked_subcommand is None:
        from fednnnn_plugin.report.catalogue import catalogue

        click.echo(catalogue().text(), nl=False)


@recipes_command.command("copy")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@one_line_errors
def copy_recipes(folder: Path) -> None:
    """Copy the recipes into a folder, to read and to change; no file is overwritten."""
    from fednnnn_plugin.report.catalogue import copy_recipes as copy

    click.echo(f"{copy(folder)} recipes copied to {folder}")
