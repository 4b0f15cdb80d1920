"""``fednnnn tune``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fednnnn_plugin.cli.shared import PATH, on_recipe, one_line_errors
from fednnnn_plugin.engine.endings import launched_ranks, say
from fednnnn_plugin.errors import UserError

if TYPE_CHECKING:
    from fednnnn_plugin.recipe import Recipe


@click.command("tune")
@on_recipe
@click.option(
    "--grid",
    "grids",
    metavar="KEY=START:STOP:STEP",
    multiple=True,
    help="Search this key, over a range with both ends or values between commas; may be repeated. "
    "Only what is named is searched; default: η, and the method's keys.",
)
@click.option("--rounds", type=int, help="Rounds of a trial; default: the paper's for the data.")
@click.option("--validation", type=float, help="Share of the training images to judge on; 1/6.")
@click.option(
    "--metric",
    help="best_accuracy (default), final_accuracy or final_loss; where the recipe names "
    "validation_args.metrics, best_metric (default then) or final_metric, of the first.",
)
@click.option(
    "--paper",
    is_flag=True,
    default=None,
    help="The paper's procedure for a recipe of other data, network or deal, too.",
)
@click.option("--prune", is_flag=True, default=None, help="Stop trials far behind the others.")
@click.option(
    "--settings",
    type=PATH,
    help="A YAML file with grids, rounds, validation, metric, prune; options come before it.",
)
@click.option("--study", type=PATH, help="The study folder; default studies/<recipe>-seed<seed>.")
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
    allow_code: bool,
    **options: object,
) -> None:
    """Find a recipe's hyperparameters by grid search.

    Part of the training images is held out. Of a recipe of the paper's data, network and deal, and
    of any with --paper, the learning rate is chosen on FedAvg under the paper's non-IID-B, then the
    method's own coefficients. Of any other recipe every --grid, which may name any number of
    train_args, is searched on the recipe as it is, jointly with the others. Further processes, on
    other machines too, join with --resume on the same study folder.
    """
    from fednnnn_plugin.engine.devices import keep_freed_memory
    from fednnnn_plugin.recipe import find_recipe, load_recipe
    from fednnnn_plugin.report.study import is_study, read_plan
    from fednnnn_plugin.tune.folder import StudyFolder, counts, shown_values
    from fednnnn_plugin.tune.plan import described
    from fednnnn_plugin.tune.processes import search
    from fednnnn_plugin.tune.settings import Settings, checked_settings, read_settings
    from fednnnn_plugin.tune.start import begin_study, check_study

    keep_freed_memory()
    if launched_ranks() > 1:
        raise UserError("tune: start one process; --jobs N starts more, --resume joins a study")
    if jobs < 1:
        raise UserError(f"--jobs: {jobs}: must be at least 1")
    if grids:
        options["grids"] = _by_key(grids)
    path = find_recipe(recipe)

    def load(more: Sequence[str]) -> Recipe:
        return load_recipe(path, [*overrides, *more], allow_code=allow_code)

    loaded = load([])
    given = checked_settings({k: v for k, v in options.items() if v is not None}, "--")
    given = (read_settings(settings) if settings else Settings()).updated(given)
    default = f"{loaded.name}-seed{loaded.common_args.random_seed}"
    folder = StudyFolder(study or Path("studies") / default, allow_code=allow_code)
    if resume and is_study(folder.path):
        check_study(folder, load, given)
    else:
        begin_study(folder, load, given)
        if resume:
            say(f"{folder.path}: no study to go on with: beginning one")
    for key, asked in (
        ("tracking_args.enable_wandb", loaded.tracking_args.enable_wandb),
        ("common_args.using_mlops", loaded.common_args.using_mlops),
    ):
        if asked:
            say(f"warning: {key}: true: trials do not report; runs of best.yaml do", err=True)
    for line in described(folder.load, read_plan(folder.path)):
        say(line)
    found = search(folder, say, jobs)
    steps = found.plan.steps
    say(counts(found.trials, sum(map(len, steps))))
    say(f"best: {', '.join(shown_values(found.chosen(step)) for step in steps)}")
    say(f"recipe: {folder.best}")


def _by_key(grids: tuple[str, ...]) -> dict[str, str]:
    """Divide KEY=VALUES; ``train_args.`` may stand before the key, as in --set."""
    found: dict[str, str] = {}
    for grid in grids:
        key, equals, values = grid.partition("=")
        key = key.strip().removeprefix("train_args.")
        if not equals or not key:
            raise UserError(f"--grid {grid!r}: write KEY=VALUES, as in beta=0.5:1.2:0.1")
        if key in found:
            raise UserError(f"--grid {key}: given twice; put its values between commas")
        found[key] = values.strip()
    return found
