"""Which of FedML's arguments name a method of ours, and whether they may name code."""

import logging
import os
import sys
from typing import Any

from fednnnn_plugin.errors import (
    ALLOW_CODE,
    BACKEND,
    OUTPUT,
    OVERWRITE,
    RESUME,
    UserError,
    did_you_mean,
    options_named,
)
from fednnnn_plugin.user_code import names_code

_log = logging.getLogger(__name__)

PROXIMAL = "PaperFedProx"
_FEDMLS = "FedML_FEDERATED_OPTIMIZER_"

# Keys that FedML 0.9.6 reads nowhere, or (beta) in one defence alone.
_OUR_KEYS = (
    *("beta", "gamma", "client_weighting", "client_sampling", "client_method"),
    *("max_client_norm", "max_client_failures", "server_state_path", "metrics_path"),
)
NEAR = 0.85  # of difflib's ratio: FedML's own names and keys are further away from ours


def names_ours(args: Any) -> bool:
    """Say whether ``federated_optimizer`` is one of our methods, or a custom rule.

    Our rules are optimizers, which FedML lists as soon as they are imported: a name of FedML's own
    leaves them alone.
    """
    named = _not_fedmls(args)
    if named is None:
        return False
    from fednnnn_plugin.server.rules import RULES

    return named in RULES or names_code(named)


def _not_fedmls(args: Any) -> str | None:
    """Return the method that is named, unless FedML has it."""
    named = getattr(args, "federated_optimizer", None)
    constants = getattr(sys.modules.get("fedml.constants"), "__dict__", {})
    theirs = {value for name, value in constants.items() if name.startswith(_FEDMLS)}
    return named if isinstance(named, str) and named not in theirs else None


def refuse_near_miss(args: Any) -> None:
    """Raise where the method is nobody's, and nearly one of ours."""
    named = _not_fedmls(args)
    if named is None or names_ours(args):
        return
    from fednnnn_plugin.server.rules import RULES

    if hint := did_you_mean(named, RULES, near=NEAR):
        why = f"{named!r}: no method of FedML's or of fednnnn-plugin's{hint}"
        raise UserError("federated_optimizer", why)


def warn_of_what_is_not_ours(args: Any) -> None:
    """Say which keys of ours a method of FedML's does not read, and which name is of both."""
    if getattr(args, "federated_optimizer", None) == "FedDyn":
        _log.warning(
            "federated_optimizer: FedDyn: FedML's own runs; fednnnn-plugin's runs by fedml run, "
            "fednnnn run or fp.run"
        )
    given = [key for key in _OUR_KEYS if getattr(args, key, None) is not None]
    if getattr(args, "defense_type", None) == "trimmed_mean":
        given = [key for key in given if key != "beta"]
    if given:
        _log.warning(
            "%s: without effect: federated_optimizer %s is FedML's own; name one of "
            "fednnnn-plugin's, or give FedMLRunner a FedNNNNAggregator",
            ", ".join(given),
            getattr(args, "federated_optimizer", None),
        )


def simulates_ours(args: Any) -> bool:
    """Say whether FedML's arguments ask for a simulation of such a method."""
    return getattr(args, "training_type", None) == "simulation" and names_ours(args)


def is_proximal(args: Any) -> bool:
    """Say whether clients are to add the proximal term, by the method or the client method."""
    client_method = getattr(args, "client_method", None)
    return client_method == "fedprox" or getattr(args, "federated_optimizer", None) == PROXIMAL


def warn_of_the_proximal_term(args: Any) -> None:
    """Say that another trainer than ours leaves out the proximal term."""
    if is_proximal(args):
        _log.warning("client_trainer: the proximal term is its own to add (prox_mu)")


def allows_code() -> bool:
    """Say whether the environment lets what a YAML file names as ``module:name`` run."""
    return os.environ.get("FEDNNNN_ALLOW_CODE") == "1"


#: Decorates what a FedML script calls: where it gives what a command has as options.
in_scripts = options_named(
    {
        BACKEND: "comm_args.backend",
        OUTPUT: "args.output",
        RESUME: "tracking_args.resume: true",
        OVERWRITE: "tracking_args.overwrite: true",
        ALLOW_CODE: "FEDNNNN_ALLOW_CODE=1 to the environment",
    }.get
)
