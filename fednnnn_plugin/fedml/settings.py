"""What a cross-silo server and client read of FedML's arguments, checked; the rest is their own."""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.engine.settings import local_sgd
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.recipe import Recipe, recipe_from_args
from fednnnn_plugin.server.rules import RULES, Rule

_SERVER_KEYS = (
    *("beta", "gamma"),
    *("server_lr", "server_beta1", "server_beta2", "server_tau", "fedexp_epsilon"),
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
)
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
    """

    sgd: LocalSGD
    seed: int
    start_round: int


def server_settings(args: Any, method: str | None = None) -> ServerSettings:
    """Return the server's settings.

    Args:
        args: FedML's arguments.
        method: one of our methods; None takes ``federated_optimizer`` if that is one, else FedNNNN.

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
        method = str(named) if named in RULES else "FedNNNN"
    elif method not in RULES:
        raise UserError(f"method: {method!r}: must be one of {', '.join(RULES)}")
    # The proximal term is the clients'.
    recipe = _recipe(args, _SERVER_KEYS, federated_optimizer=method, prox_mu=_unless(method))
    train, tracking = recipe.train_args, recipe.tracking_args
    return ServerSettings(
        rule=recipe.rule,
        coefficients=recipe.rule_settings,
        weighting=train.client_weighting,
        max_client_norm=train.max_client_norm,
        max_client_failures=train.max_client_failures,
        start_round=train.start_round,
        state_path=_path(tracking.server_state_path),
        save_path=_path(tracking.save_path),
    )


def client_settings(args: Any) -> ClientSettings:
    """Return our client trainer's settings; ``prox_mu`` may stand beside any method.

    Raises:
        UserError: a line for each setting that is missing or out of range.
    """
    absent = {} if getattr(args, "prox_mu", None) is not None else {"prox_mu": 0.0}
    recipe = _recipe(args, _CLIENT_KEYS, federated_optimizer="PaperFedProx", **absent)
    train = recipe.train_args
    return ClientSettings(local_sgd(recipe), recipe.common_args.random_seed, train.start_round)


def _recipe(args: Any, keys: tuple[str, ...], **fixed: object) -> Recipe:
    read = {key: getattr(args, key, None) for key in (*keys, "yaml_config_file")}
    unread = {key: value for key, value in _UNREAD.items() if key not in keys}
    return recipe_from_args(SimpleNamespace(**read | unread | fixed))


def _unless(method: str) -> float | None:
    return 0.0 if method == "PaperFedProx" else None


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text).expanduser()
