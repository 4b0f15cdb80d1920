"""What FedML's arguments say, checked: all of a simulation, and what a silo's two sides read."""

from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.fedml.methods import require_code_allowed
from fednnnn_plugin.recipe import Recipe, recipe_from_args
from fednnnn_plugin.server.rules import CLIENTS_KEYS, RULES, find_rule, load_rule
from fednnnn_plugin.user_code import names_code

_SERVER_KEYS = (
    "client_weighting",
    "max_client_norm",
    "max_client_failures",
    "start_round",
    "server_state_path",
    "save_path",
)
_CLIENT_KEYS = (
    "random_seed",
    "start_round",
    "epochs",
    "batch_size",
    "client_optimizer",
    "learning_rate",
    "weight_decay",
    "prox_mu",
    "precision",
    "client_threads",
)
#: A user's trainer may call them otherwise.
TRAINING_KEYS = ("epochs", "batch_size", "learning_rate")
_METHOD = "train_args.federated_optimizer"
_SECURE = ("LSA", "SA")  # FedML's light and plain secure aggregation

# A recipe needs these; a deployment may call them otherwise where it does not use ours.
_UNREAD = {
    "client_num_in_total": 1,
    "client_num_per_round": 1,
    "comm_round": 1,
    "epochs": 1,
    "batch_size": 1,
    "learning_rate": 1.0,
}


def script_recipe(
    args: Any,
    *,
    method: str | None = None,
    custom_trainer: bool = False,
    unread: Collection[str] = (),
    instead: Mapping[str, object] | None = None,
) -> Recipe:
    """Return what ``fedml.init`` gave as a recipe; see :func:`recipe_from_args`.

    Of the keys of training those in ``unread`` may be absent: a user's trainer has its own. What
    ``instead`` holds takes the place of what the arguments say.
    """
    absent = {key: _UNREAD[key] for key in unread if getattr(args, key, None) is None}
    args = SimpleNamespace(**vars(args) | absent | dict(instead or {}))
    named = method or getattr(args, "federated_optimizer", None)
    if own := names_code(named):
        require_code_allowed(_METHOD, str(named))
    return recipe_from_args(args, method=method, custom_trainer=custom_trainer, allow_code=own)


def server_recipe(args: Any, method: str | None = None) -> Recipe:
    """Return what a silo's server reads.

    ``method`` is ours, or a user's own; None takes ``federated_optimizer`` if that is one, else
    FedNNNN. Secure aggregation is refused.
    """
    named = getattr(args, "federated_optimizer", None)
    if named in _SECURE:
        raise UserError(
            f"federated_optimizer: {named}: norms cannot be taken of models that the server does "
            "not see; must be FedAvg, or one of our methods"
        )
    if method is None:
        method = str(named) if named in RULES or names_code(named) else "FedNNNN"
    elif not isinstance(method, str) or (method not in RULES and not names_code(method)):
        raise UserError(f"method: {method!r}: must be one of {', '.join(RULES)}")
    if names_code(method):
        require_code_allowed(_METHOD, method)
    rule = load_rule(method, _METHOD) if names_code(method) else find_rule(method)
    every = dict.fromkeys(key for other in RULES.values() for key in other.keys)
    keys = (*_SERVER_KEYS, *(key for key in every if key not in CLIENTS_KEYS))
    clients = {key: 0.0 for key in rule.keys if key in CLIENTS_KEYS}  # theirs to give
    return _recipe(args, keys, federated_optimizer=method, **clients)


def client_recipe(args: Any) -> Recipe:
    """Return what a silo's client reads; ``prox_mu`` may stand beside any method."""
    if getattr(args, "scenario", None) == "hierarchical":
        raise UserError(
            "scenario: hierarchical: the processes of a silo would train apart with "
            "FedNNNNClientTrainer: must be horizontal, or another client_trainer"
        )
    absent = {} if getattr(args, "prox_mu", None) is not None else {"prox_mu": 0.0}
    return _recipe(args, _CLIENT_KEYS, federated_optimizer="PaperFedProx", **absent)


def _recipe(args: Any, keys: tuple[str, ...], **fixed: object) -> Recipe:
    read = {key: getattr(args, key, None) for key in (*keys, "yaml_config_file")}
    return script_recipe(SimpleNamespace(**read | fixed), unread=_UNREAD.keys() - keys)
