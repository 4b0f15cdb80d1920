"""Which of FedML's arguments have no effect: misspelt, renamed, of others, of FedML alone."""

import logging
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from fednnnn_plugin.errors import UserError, printable
from fednnnn_plugin.reading import read_mapping
from fednnnn_plugin.recipe.consistency import cross_silo_keys
from fednnnn_plugin.recipe.method_keys import method_keys
from fednnnn_plugin.recipe.schema import SECTIONS, own_keys

_log = logging.getLogger(__name__)

_OF_SIMULATIONS = ("metrics", "stop", "test_served", "resume", "overwrite", "checkpoint_every")
_NEAR = 0.85  # of difflib's ratio: FedML's own keys are further away from ours
_OLD_NAMES = {"lr": "learning_rate", "wd": "weight_decay"}
# Of training, and read by some trainer of FedML's or in its examples.
_OF_OTHER_TRAINING = (
    *("momentum", "nesterov", "dampening", "lr_scheduler", "lr_schedule", "lr_decay_rate"),
    *("lr_step", "lr_step_size", "lr_milestones", "learning_rate_min", "grad_clip", "clipping"),
    *("clipping_norm", "optimizer", "early_stopping", "server_optimizer", "server_momentum"),
    *("fedprox_mu", "mu", "feddyn_alpha", "gmf", "betas"),
)
_FEDMLS_AND_NEAR = ("epoch", "metric", "mode")  # names of FedML's that are near ours
# Read by FedML itself, from this section.
_OF_PLATFORM = {"client_id_list", "ci", "is_mobile", "local_test_on_all_clients", "round_idx"}


def warn_of_near_keys(args: Any, *, training: bool = True) -> set[str]:
    """Say which arguments are nearly a key of ours, and are read by nobody; return them.

    Without ``training`` the keys of ``train_args`` that any trainer has may be a user's own.
    """
    every = {key for section in SECTIONS for key in own_keys(section)} | set(method_keys())
    given, found = _given(args), set()
    if not training:
        every -= _training_keys()
    for name in sorted(given - every - _OLD_NAMES.keys() - {*_OF_OTHER_TRAINING}):
        near = get_close_matches(name, sorted(every), 1, _NEAR)
        if near and not (name in _FEDMLS_AND_NEAR and near[0] in given):
            found.add(name)
            _log.warning("%s: no such key, and ignored; did you mean %s?", name, near[0])
    return found


def warn_of_unread_keys(args: Any) -> None:
    """Say which arguments our training does not read: misspelt, or of other training, in a line.

    Raises:
        UserError: a key of older FedML where the one that took its place is absent.
    """
    _refuse_old_names(args)
    every = {*own_keys("train_args"), *method_keys(), *_OLD_NAMES, *_OF_PLATFORM}
    every |= warn_of_near_keys(args)
    unread = (_given(args) & {*_OF_OTHER_TRAINING, *_section(args, "train_args")}) - every
    if unread:
        _log.warning(
            "%s: not read by fednnnn-plugin's training (only code of your own may use them)",
            ", ".join(map(printable, sorted(unread))),
        )


def _refuse_old_names(args: Any) -> None:
    given = _given(args)
    for old, new in _OLD_NAMES.items():
        if old in given and new not in given:
            raise UserError(f"train_args.{old}: it is called {new}")


def warn_of_unused_keys(args: Any, *, simulation: bool) -> None:
    """Say which keys are of deployments alone, or of simulations."""
    keys = cross_silo_keys() if simulation else _OF_SIMULATIONS
    if given := [key for key in keys if getattr(args, key, None)]:
        where = "a simulation" if simulation else "a deployment's server"
        _log.warning("%s: without effect in %s of fednnnn-plugin", ", ".join(given), where)


def _given(args: Any) -> set[str]:
    return {name for name, value in vars(args).items() if value is not None}


def _training_keys() -> set[str]:
    """Return the keys of a client's own training, which a user's trainer may call otherwise."""
    ours = {"learning_rate_schedule", "local_steps", "train_transform"}
    ours |= {"epochs", "batch_size", "loss", "learning_rate", "learning_rate_decay", "weight_decay"}
    return ours | {"client_optimizer", "client_optimizer_args", "max_grad_norm", "precision"}


def _section(args: Any, name: str) -> Iterable[str]:
    """Return the keys of a section of the file that FedML read, as far as it can be read again."""
    try:
        file = Path(str(getattr(args, "yaml_config_file", "")))
        found = read_mapping(file, "sections").get(name)
    except (UserError, ValueError):
        return ()
    return found if isinstance(found, dict) else ()
