"""What the commands have in common."""

import os
import sys
from collections.abc import Callable
from functools import reduce, wraps
from importlib import import_module
from pathlib import Path
from typing import Any, ParamSpec

import click

from fednnnn_plugin.errors import RunError, UserError
from fednnnn_plugin.files import user_path
from fednnnn_plugin.packaged_recipes import find_recipe
from fednnnn_plugin.processes.endings import (
    OPENMP_BINDING,
    Terminated,
    ending,
    launched_rank,
    launched_ranks,
    leave_unsaid,
    of_rank,
    open_standard_files,
    say,
    signals_raised,
)

P = ParamSpec("P")


class _UserPath(click.Path):
    """A path; a shell leaves the ``~`` of ``--out=~/report`` to us."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        path: Any = super().convert(value, param, ctx)
        return user_path(path)


PATH = _UserPath(path_type=Path)


def one_line_errors(command: Callable[P, None]) -> Callable[P, None]:
    """End a command with the right status, and without a traceback for what is not our mistake."""

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        open_standard_files()
        try:
            with signals_raised():
                for name in OPENMP_BINDING:
                    os.environ.pop(name, None)
                # First: torch would continue without it where a signal ends its import.
                import_module("numpy")
                # A typo need not wait for torch. Under mpirun all ranks say it together: Open MPI
                # 5.0's was seen to hang when one rank ended while another was starting.
                if "recipe" in kwargs and launched_ranks() == 1:
                    find_recipe(str(kwargs["recipe"]))
                command(*args, **kwargs)
        except (UserError, RunError, OSError, KeyboardInterrupt, Terminated) as error:
            message, status = ending(error)
            if not (launched_rank() and isinstance(error, KeyboardInterrupt | Terminated)):
                say(of_rank(message), err=True)  # a signal is sent to all, and rank 0 says it
            sys.exit(status)
        finally:
            leave_unsaid()

    return wrapped


def with_options(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Give a command options of click's, which its help shows in this order."""
    return lambda command: reduce(lambda given, option: option(given), options[::-1], command)


#: Gives a command the argument ``recipe`` and the options that go with every recipe.
on_recipe = with_options(
    click.argument("recipe", metavar="RECIPE.yaml"),
    click.option(
        "--set",
        "overrides",
        metavar="section.key=value",
        multiple=True,
        help="Override a recipe key, such as train_args.comm_round=3; may be repeated.",
    ),
    click.option(
        "--allow-code",
        is_flag=True,
        help="Let all that the recipe names as MODULE:NAME run, such as its dataset, model, loss "
        "or federated_optimizer: for recipes that you trust.",
    ),
)
