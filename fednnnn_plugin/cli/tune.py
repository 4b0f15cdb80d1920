"""``fednnnn tune``."""

from typing import Any, get_args

import click

from fednnnn_plugin.cli.shared import PATH, on_recipe, one_line_errors
from fednnnn_plugin.processes.endings import say
from fednnnn_plugin.reporting.metrics import Metric


@click.command("tune")
@on_recipe
@click.option(
    "--grid",
    "grids",
    metavar="KEY=START:STOP:STEP",
    multiple=True,
    help="Search this key, over a range with both ends or values between commas; may be repeated. "
    "Only these keys are searched. Default: the learning rate and the method's coefficients; "
    "without the paper's procedure none.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    help="Rounds of a trial; default: the paper's or the recipe's.",
)
@click.option(
    "--validation",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="Share of the training samples to judge on.",
)
@click.option(
    "--metric",
    type=click.Choice(get_args(Metric)),
    help="worst_10 is the final accuracy of the worst tenth of the clients, of a recipe with "
    "validation_args.per_client. Default: best_metric, of the recipe's first metric, where it "
    "names validation_args.metrics; final_loss with the loss mse or bce_with_logits, and where "
    "labels are numbers; else best_accuracy.",
)
@click.option("--seeds", metavar="LIST", help="Judge by the mean over seeds, as in 0,1,2.")
@click.option(
    "--paper/--no-paper",
    default=None,
    help="Follow the paper's procedure for other data, models or partitions as well; or search the "
    "keys of --grid jointly for these, too.",
)
@click.option("--prune", is_flag=True, default=None, help="Stop trials behind the others' median.")
@click.option("--study", type=PATH, help="The study folder; default studies/<recipe>-seed<seed>.")
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="How many trials run in parallel.",
)
@click.option("--resume", is_flag=True, help="Continue the study; no finished trial is repeated.")
@one_line_errors
def tune_command(recipe: str, *, grids: tuple[str, ...], **options: Any) -> None:
    """Find a recipe's hyperparameters by grid search.

    Trials are judged on held-out training samples, by default a sixth of them or the recipe's
    validation_fraction. For mnist, cifar10 and digits with the package's network and an iid or
    n_class partition, and for any recipe with --paper, the learning rate is chosen first, with
    FedAvg on the paper's non-IID-B partition, then the method's own coefficients. For other recipes
    the keys that --grid names, any number of train_args, are searched jointly, on the recipe as it
    is. More processes, also on other machines, join with --resume on the same study folder.
    """
    from fednnnn_plugin.processes.numerics import keep_freed_memory
    from fednnnn_plugin.tuning.options import Options, checked_options, parse_grids
    from fednnnn_plugin.tuning.tuning import tune_recipe

    of_plan = {name: options.pop(name) for name in options.keys() & {*Options._fields}}
    asked = checked_options(of_plan | {"grid": parse_grids(grids)})
    keep_freed_memory()
    tune_recipe(recipe, asked, say=say, **options)
