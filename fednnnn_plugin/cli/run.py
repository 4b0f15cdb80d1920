"""``fednnnn run``, which is also ``fedml run RECIPE.yaml``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from fednnnn_plugin.cli.shared import PATH, on_recipe, one_line_errors, with_options
from fednnnn_plugin.cli.short_options import SHORT, on_short_options, short_overrides
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.files import user_path
from fednnnn_plugin.packaged_recipes import find_recipe
from fednnnn_plugin.processes.endings import launched_rank, say
from fednnnn_plugin.processes.interpreter import python_command
from fednnnn_plugin.reading import read_mapping

if TYPE_CHECKING:
    from fednnnn_plugin.followers.follower import Follower
    from fednnnn_plugin.run_folder.records import Summary


# What is run, where the run goes, and how it begins.
_starts = with_options(
    on_recipe,
    on_short_options,
    click.option(
        "--backend",
        type=click.Choice(["sp", "MPI"]),
        help="Standalone or MPI-distributed; under mpirun it is MPI by itself.",
    ),
    click.option("--output", type=PATH, help="The run folder; default runs/<recipe>-seed<seed>."),
    click.option("--resume", is_flag=True, help="Continue from the newest checkpoint."),
    click.option("--overwrite", is_flag=True, help="Replace a run that the folder already holds."),
)


@click.command("run", context_settings={"help_option_names": ["-h", "--help"]})
@_starts
@click.option("--tensorboard", is_flag=True, help="Also write event files for TensorBoard.")
@click.pass_obj
@one_line_errors
def run_command(
    mlops: Callable[[], Follower] | None, /, recipe: str, *, tensorboard: bool, **options: Any
) -> None:
    """Run a recipe: a federation from its YAML file to a run folder.

    RECIPE.yaml is a file, or the name of a recipe that comes with the package
    (see `fednnnn recipes`). Where FedML is installed, --set using_mlops=true runs it by
    `fedml run`, which reports to FedML's service.
    """
    from fednnnn_plugin.assembly.run import start_recipe
    from fednnnn_plugin.followers.trackers import TensorBoard
    from fednnnn_plugin.processes.numerics import keep_freed_memory

    options = _with_short(options)
    if mlops is None and find_spec("fedml") is not None:
        _become_fedml_run(recipe, options)
    keep_freed_memory()
    followers = [TensorBoard()] if tensorboard else []
    _, ended = start_recipe(recipe, followers=followers, mlops=mlops, **options)
    if ended.summary is not None:
        said = "the run is finished already" if ended.was_finished else _result(ended.summary)
        said += f"; stopped: {ended.summary.stopped}" if ended.summary.stopped else ""
        say(f"{_shown(ended.folder, options)}: {said}")


@click.command("check")
@_starts
@one_line_errors
def check_command(recipe: str, **options: Any) -> None:
    """Make all the checks of a run up to its first round, without starting it.

    Nothing is written to the run folder; data that is absent is downloaded, as by a run. Each
    mistake is one line, and the exit status is then 2: useful before a job is queued.

    RECIPE.yaml may be the YAML of a FedML server (training_type: cross_silo), which takes no
    options: its settings, paths, clients and state are checked, and nothing is written.
    """
    if _is_servers(recipe):
        source_of = click.get_current_context().get_parameter_source
        if given := [name for name in options if source_of(name) is not ParameterSource.DEFAULT]:
            words = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            words = words.replace("--overrides", "--set")
            raise UserError(words, "a FedML server's YAML is checked without options")
        _check_server(user_path(recipe))
        return
    from fednnnn_plugin.assembly.run import start_recipe

    options = _with_short(options)
    loaded, checked = start_recipe(recipe, only_check=True, **options)
    if launched_rank():
        return
    train, settings = loaded.train_args, loaded.rule_settings
    values = ", ".join(f"{key} {value}" for key, value in settings.items())
    say(
        f"{loaded.name}: {train.federated_optimizer}{f' ({values})' if values else ''}, "
        f"{train.comm_round} rounds, {train.client_num_per_round} of {train.client_num_in_total} "
        f"clients a round; {loaded.data_args.dataset}, {loaded.model_args.model}"
    )
    finished = ", finished already" if checked.was_finished else ""
    say(f"run folder: {_shown(checked.folder, options)}{finished}")


def _is_servers(recipe: str) -> bool:
    """Say whether a file is of a FedML server; what cannot be read is the recipe's check to say."""
    try:
        sections = read_mapping(find_recipe(recipe), "sections", as_pyyaml=True)
    except UserError:
        return False
    common = sections.get("common_args")
    return isinstance(common, dict) and common.get("training_type") == "cross_silo"


def _check_server(path: Path) -> None:
    # What touches FedML is above the commands, as `fedml run` uses them: it is loaded by its name.
    if reason := import_module("fednnnn_plugin.fedml.hook").why_unusable("check of a server"):
        raise UserError(reason)
    say(import_module("fednnnn_plugin.fedml.server_check").check_server(path))


def _shown(folder: Path, options: dict[str, Any]) -> Path:
    """Return a run folder as it was given; by default it is in the working directory."""
    return options["output"] or Path(*folder.parts[-2:])


def _with_short(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with the short ones as overrides; ``--set`` comes after them."""
    given = {name: options.pop(name) for name in SHORT}
    return options | {"overrides": (*short_overrides(given), *options["overrides"])}


def _become_fedml_run(recipe: str, options: dict[str, Any]) -> None:
    """Continue as ``fedml run`` with the same arguments, if FedML's service is asked for."""
    from fednnnn_plugin.assembly.from_recipe import check_services
    from fednnnn_plugin.recipe import load_recipe

    allow_code = options["allow_code"]
    try:
        loaded = load_recipe(find_recipe(recipe), options["overrides"], allow_code=allow_code)
    except UserError:
        return  # which the run says, for all ranks together
    if not loaded.common_args.using_mlops:
        return
    check_services(loaded, options["overrides"], by_fedml=False)
    if launched_rank() == 0:
        click.echo("common_args.using_mlops: true: starting `fedml run`", err=True)
    sys.stdout.flush()
    statement = "sys.argv[0] = 'fedml'; from fedml.cli.cli import cli; cli()"  # as pip's script
    os.execv(sys.executable, python_command(statement, *sys.argv[1:]))


def _result(summary: Summary) -> str:
    of, final, best = "accuracy", summary.final_test_acc, summary.best_test_acc
    best_round = summary.best_round
    if summary.metric is not None:
        of, final, best = summary.metric, summary.final_metric, summary.best_metric
        best_round = summary.best_metric_round
    if final is None or best is None:
        return f"{summary.rounds} rounds"
    return f"{of} {final:.4f} after {summary.rounds} rounds, best {best:.4f} in round {best_round}"
