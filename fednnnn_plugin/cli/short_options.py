"""Options for what people change most in a recipe: short for ``--set section.key=value``."""

import re
from collections.abc import Mapping

import click

from fednnnn_plugin.cli.shared import with_options
from fednnnn_plugin.errors import UserError, one_of, printable

SHORT = ("method", "rounds", "seed", "device", "clients")
_KEYS = {"rounds": "train_args.comm_round", "seed": "common_args.random_seed"}


#: Gives a command the options that :func:`short_overrides` takes, by their names.
on_short_options = with_options(
    click.option(
        "--clients",
        metavar="K|M/K",
        help="K clients in total, of which M (default all) train in a round.",
    ),
    click.option("--device", metavar="cpu|gpu|gpu:N", help="Where to train."),
    click.option(
        "--method",
        help="Another server rule, such as FedAvg or Momentum; what the recipe sets for its own "
        "rule alone is left out.",
    ),
    click.option("--rounds", type=int, help="Short for --set train_args.comm_round=N."),
    click.option("--seed", type=int, help="Short for --set common_args.random_seed=N."),
)


def short_overrides(given: Mapping[str, object]) -> list[str]:
    """Return the overrides that the options ``given`` are short for."""
    found = [f"{key}={given[name]}" for name, key in _KEYS.items() if given.get(name) is not None]
    for name, of in (("device", _device), ("clients", _clients), ("method", _method)):
        if (text := given.get(name)) is not None:
            found += of(str(text))
    return found


def _device(text: str) -> list[str]:
    overruled = "device_args.device_type=null"
    if text == "cpu":
        return [overruled, "device_args.using_gpu=false"]
    match = re.fullmatch(r"gpu(?::(\d+))?", text)
    if not match:
        raise UserError("--device", printable(text), "must be cpu, gpu or gpu:N")
    return [overruled, "device_args.using_gpu=true", f"device_args.gpu_id={match[1] or 0}"]


def _clients(text: str) -> list[str]:
    match = re.fullmatch(r"(?:(\d+)/)?(\d+)", text)
    if not match:
        raise UserError(
            "--clients", printable(text), "must be K, or M/K for M of K clients a round"
        )
    a_round, total = match[1] or match[2], match[2]
    return [f"train_args.client_num_in_total={total}", f"train_args.client_num_per_round={a_round}"]


def _method(name: str) -> list[str]:
    from fednnnn_plugin.server.rules import RULES
    from fednnnn_plugin.user_code import is_own

    known = {rule.removeprefix("Paper").lower(): rule for rule in RULES}
    rule = name if name in RULES or is_own(name) else known.get(name.lower())
    if rule is None:
        names = [each.removeprefix("Paper") for each in RULES]
        raise UserError("--method", printable(name), one_of(names, name, "MODULE:CLASS"))
    return [f"train_args.federated_optimizer={rule}"]
