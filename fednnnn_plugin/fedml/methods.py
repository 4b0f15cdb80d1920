"""Which of FedML's arguments name a method of ours."""

import logging
import os
import sys
from typing import Any

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.user_code import names_code

_log = logging.getLogger(__name__)

_ALLOWED = "FEDNNNN_ALLOW_CODE"
_FEDMLS = "FedML_FEDERATED_OPTIMIZER_"


def names_ours(args: Any) -> bool:
    """Say whether ``federated_optimizer`` is one of our methods, or a user's own rule.

    Our rules are optimizers, which FedML lists as soon as they are imported: a name of FedML's own
    leaves them alone.
    """
    named = getattr(args, "federated_optimizer", None)
    constants = getattr(sys.modules.get("fedml.constants"), "__dict__", {})
    theirs = {value for name, value in constants.items() if name.startswith(_FEDMLS)}
    if not isinstance(named, str) or named in theirs:
        return False
    from fednnnn_plugin.server.rules import RULES

    return named in RULES or names_code(named)


def simulates_ours(args: Any) -> bool:
    """Say whether FedML's arguments ask for a simulation of such a method."""
    return getattr(args, "training_type", None) == "simulation" and names_ours(args)


def warn_of_the_proximal_term(args: Any) -> None:
    """Say that another trainer than ours leaves out what PaperFedProx is of."""
    if args.federated_optimizer == "PaperFedProx":
        _log.warning("client_trainer: PaperFedProx's proximal term is its own to add (prox_mu)")


def require_code_allowed(where: str, reference: str) -> None:
    """Refuse ``module:name`` unless the user, by the environment, allows such code to run."""
    if os.environ.get(_ALLOWED) != "1":
        raise UserError(
            f"{where}: {reference!r} is code that the YAML file asks to run: set {_ALLOWED}=1 in "
            "the environment if you trust it"
        )
