"""What the commands have in common."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import click

from fednnnn_plugin.engine.endings import Terminated, ending, launched_rank
from fednnnn_plugin.errors import LaunchError, RunError, UserError

P = ParamSpec("P")


def one_line_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Print the user's mistakes without a traceback and exit with the right status."""

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except (UserError, RunError, OSError, KeyboardInterrupt, Terminated) as error:
            message, status = ending(error)
            # The other ranks have the same mistake to report, unless they know of no others.
            if launched_rank() == 0 or isinstance(error, LaunchError):
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
    help="Let what the recipe names as MODULE:NAME run, its dataset, model or "
    "federated_optimizer: for recipes that you trust.",
)
