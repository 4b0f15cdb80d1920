"""What FedML's arguments say, checked: all of a simulation, and what a silo's two sides read."""

import os
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.engine.settings import local_sgd
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.fedml.methods import require_code_allowed
from fednnnn_plugin.recipe import Recipe, recipe_from_args
from fednnnn_plugin.server.rules import RULES, Rule, find_rule, load_rule
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


@dataclass(frozen=True)
class ServerSettings:
    """Settings of :class:`~fednnnn_plugin.fedml.aggregator.FedNNNNAggregator`.

    Attributes:
        rule: the server rule.
        coefficients: the values of its keys.
        weighting: α_k = 1/m, or n_k/n.
        max_client_norm: longer updates are clipped to this norm.
        max_client_failures: how many clients of a round may send what is no model of ours.
        start_round: rounds that are done.
        state_path: file of the server's state.
        save_path: file of the evaluation model.
    """

    rule: Rule
    coefficients: dict[str, float]
    weighting: Literal["uniform", "samples"]
    max_client_norm: float | None
    max_client_failures: int
    start_round: int
    state_path: Path | None
    save_path: Path | None


@dataclass(frozen=True)
class ClientSettings:
    """Settings of :class:`~fednnnn_plugin.fedml.trainer.FedNNNNClientTrainer`.

    Attributes:
        sgd: local training.
        seed: of the shuffles.
        start_round: rounds that are done.
        threads: of PyTorch while it trains.
    """

    sgd: LocalSGD
    seed: int
    start_round: int
    threads: int


def script_recipe(args: Any, *, method: str | None = None, custom_trainer: bool = False) -> Recipe:
    """Return what ``fedml.init`` gave as a recipe; see :func:`recipe_from_args`.

    Raises:
        UserError: a line for each problem; a rule ``module:Class`` that is not allowed to run.
    """
    named = method or getattr(args, "federated_optimizer", None)
    if own := names_code(named):
        require_code_allowed(_METHOD, str(named))
    return recipe_from_args(args, method=method, custom_trainer=custom_trainer, allow_code=own)


def server_settings(args: Any, method: str | None = None) -> ServerSettings:
    """Return the server's settings.

    Args:
        args: FedML's arguments.
        method: one of our methods, or a user's own; None takes ``federated_optimizer`` if that is
            one, else FedNNNN.

    Raises:
        UserError: a line for each setting that is missing or out of range; secure aggregation.
    """
    named = getattr(args, "federated_optimizer", None)
    if named in _SECURE:
        raise UserError(
            f"federated_optimizer: {named}: norms cannot be taken of models that the server does "
            "not see; must be FedAvg, or one of our methods"
        )
    if method is None:
        method = named if named in RULES or names_code(named) else "FedNNNN"
    rule = _find(method)
    every = {key: one for other in RULES.values() for key, one in other.keys.items()}
    keys = (*_SERVER_KEYS, *(key for key, one in every.items() if not one.client))
    clients = {key: 0.0 for key, one in rule.keys.items() if one.client}  # theirs to give
    recipe = _recipe(args, keys, federated_optimizer=method, **clients)
    train, tracking = recipe.train_args, recipe.tracking_args
    return ServerSettings(
        rule=rule,
        coefficients=recipe.rule_settings,
        weighting=train.client_weighting,
        max_client_norm=train.max_client_norm,
        max_client_failures=train.max_client_failures,
        start_round=train.start_round,
        state_path=_path(tracking.server_state_path),
        save_path=_path(tracking.save_path),
    )


def _find(method: str) -> Rule:
    if not names_code(method):
        return find_rule(method)
    require_code_allowed(_METHOD, method)
    return load_rule(method, _METHOD)


def client_settings(args: Any) -> ClientSettings:
    """Return our client trainer's settings; ``prox_mu`` may stand beside any method.

    Raises:
        UserError: a line for each setting that is missing or out of range; hierarchical silos.
    """
    if getattr(args, "scenario", None) == "hierarchical":
        raise UserError(
            "scenario: hierarchical: the processes of a silo would train apart with "
            "FedNNNNClientTrainer: must be horizontal, or another client_trainer"
        )
    absent = {} if getattr(args, "prox_mu", None) is not None else {"prox_mu": 0.0}
    recipe = _recipe(args, _CLIENT_KEYS, federated_optimizer="PaperFedProx", **absent)
    train = recipe.train_args
    threads = train.client_threads
    return ClientSettings(
        sgd=local_sgd(recipe),
        seed=recipe.common_args.random_seed,
        start_round=train.start_round,
        threads=len(os.sched_getaffinity(0)) if threads == "auto" else threads,
    )


def _recipe(args: Any, keys: tuple[str, ...], **fixed: object) -> Recipe:
    read = {key: getattr(args, key, None) for key in (*keys, "yaml_config_file")}
    unread = {key: value for key, value in _UNREAD.items() if key not in keys}
    return script_recipe(SimpleNamespace(**read | unread | fixed))


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text).expanduser()
