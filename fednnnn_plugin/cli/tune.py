"""``fednnnn tune``."""

from __future__ import annotations

import click

from fednnnn_plugin.cli.shared import PATH, on_recipe, one_line_errors
from fednnnn_plugin.engine.endings import say


@click.command("tune")
@on_recipe
@click.option(
    "--grid",
    metavar="KEY=START:STOP:STEP",
    multiple=True,
    help="Search this key, over a range with both ends or values between commas; may be repeated. "
    "Only what is named is searched; default: η and the method's keys. Without the paper's "
    "procedure there is no default.",
)
@click.option("--rounds", type=int, help="Rounds of a trial; default: the paper's or the recipe's.")
@click.option("--validation", type=float, help="Share of the training samples to judge on; 1/6.")
@click.option(
    "--metric",
    help="best_accuracy (default), final_accuracy or final_loss (default where labels are "
    "numbers); where the recipe names validation_args.metrics, best_metric (default then) or "
    "final_metric, of the first.",
)
@click.option("--seeds", metavar="LIST", help="Judge by the mean over seeds, as in 0,1,2.")
@click.option(
    "--paper",
    is_flag=True,
    default=None,
    help="The paper's procedure for a recipe of other data, network or deal, too.",
)
@click.option("--prune", is_flag=True, default=None, help="Stop trials far behind the others.")
@click.option("--study", type=PATH, help="The study folder; default studies/<recipe>-seed<seed>.")
@click.option("--jobs", default=1, show_default=True, help="Trials side by side.")
@click.option("--resume", is_flag=True, help="Continue the study; no finished trial is repeated.")
@one_line_errors
def tune_command(recipe: str, grid: tuple[str, ...], **options: object) -> None:
    """Find a recipe's hyperparameters by grid search.

    Part of the training samples is held out. Of a recipe of the paper's data, network and deal, and
    of any with --paper, the learning rate is chosen on FedAvg under the paper's non-IID-B, then the
    method's own coefficients. Of any other recipe every --grid, which may name any number of
    train_args, is searched on the recipe as it is, jointly with the others. Further processes, on
    other machines too, join with --resume on the same study folder.
    """
    from fednnnn_plugin.engine.numerics import keep_freed_memory
    from fednnnn_plugin.tune.tuning import tune_recipe

    keep_freed_memory()
    tune_recipe(recipe, {"grid": grid or None, **options}, say=say, warn=_warn)


def _warn(text: str) -> None:
    say(f"warning: {text}", err=True)
