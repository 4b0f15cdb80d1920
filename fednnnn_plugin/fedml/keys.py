"""Which of FedML's arguments have no effect: misspelt keys of ours, renamed ones, and others."""

import logging
from difflib import get_close_matches
from typing import Any

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.fedml.methods import NEAR
from fednnnn_plugin.recipe.consistency import cross_silo_keys
from fednnnn_plugin.recipe.method_keys import method_keys
from fednnnn_plugin.recipe.schema import SECTIONS, own_keys

_log = logging.getLogger(__name__)

#: Keys that a trainer needs; a user's own may call them otherwise.
TRAINING_KEYS = ("epochs", "batch_size", "learning_rate")
#: Keys of our training alone; a user's trainer may read such names otherwise.
OWN_TRAINING = {
    *("loss", "client_optimizer_args", "learning_rate_decay", "learning_rate_schedule"),
    *("max_grad_norm", "local_steps", "train_transform"),
}
_OF_SIMULATIONS = (
    *("metrics", "stop", "test_served", "per_client", "per_class", "holdout"),
    *("resume", "overwrite", "checkpoint_every"),
)
# FedML's own, near to ours.
_FEDMLS_AND_NEAR = ("epoch", "metric", "mode", "betas", "learning_rate_min")
_OLD_NAMES = {"lr": "learning_rate", "wd": "weight_decay"}
# Of training, and read by some trainer of FedML's or in its examples.
_OF_OTHER_TRAINING = (
    *("momentum", "nesterov", "lr_scheduler", "lr_decay_rate", "grad_clip", "early_stopping"),
    *("optimizer", "server_optimizer", "fedprox_mu", "mu", "gmf"),
)


def warn_of_near_keys(args: Any, *, training: bool = True) -> None:
    """Say which arguments are nearly a key of ours, and are read by nobody.

    Without ``training`` the keys of ``train_args`` that any trainer has may be a user's own.
    """
    every = {key for section in SECTIONS for key in own_keys(section)} | set(method_keys())
    given = _given(args)
    if not training:
        every -= {*TRAINING_KEYS, *OWN_TRAINING, "weight_decay", "client_optimizer", "precision"}
    for name in sorted(given - every - {*_OLD_NAMES, *_OF_OTHER_TRAINING}):
        near = get_close_matches(name, sorted(every), 1, NEAR)
        if near and not (name in _FEDMLS_AND_NEAR and near[0] in given):
            _log.warning("%s: no such key, and ignored; did you mean %s?", name, near[0])


def warn_of_unread_keys(args: Any) -> None:
    """Say which arguments our training does not read: misspelt, or of other training, in a line.

    Raises:
        UserError: a key of older FedML where the one that took its place is absent.
    """
    given = _given(args)
    for old, new in _OLD_NAMES.items():
        if old in given and new not in given:
            raise UserError(f"train_args.{old}", f"it is called {new}")
    warn_of_near_keys(args)
    if unread := sorted(given & {*_OF_OTHER_TRAINING}):
        _log.warning(
            "%s: not read by fednnnn-plugin's training (only code of your own may use them)",
            ", ".join(unread),
        )


def warn_of_unused_keys(args: Any, *, simulation: bool) -> None:
    """Say which keys are of deployments alone, or of simulations."""
    keys = cross_silo_keys() if simulation else _OF_SIMULATIONS
    if given := [key for key in keys if getattr(args, key, None)]:
        where = "a simulation" if simulation else "a deployment's server"
        _log.warning("%s: without effect in %s of fednnnn-plugin", ", ".join(given), where)


def _given(args: Any) -> set[str]:
    return {name for name, value in vars(args).items() if value is not None}
