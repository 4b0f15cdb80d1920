"""What a recipe means to the parts of the engine."""

from __future__ import annotations

from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.engine.batches import LoaderData
from fednnnn_plugin.engine.federation import Schedule
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.recipe import Recipe
from fednnnn_plugin.server.server import ServerRule


def local_sgd(recipe: Recipe) -> LocalSGD:
    """Return the clients' training."""
    train = recipe.train_args
    return LocalSGD(
        epochs=train.epochs,
        batch_size=train.batch_size,
        learning_rate=train.learning_rate,
        weight_decay=train.weight_decay,
        prox_mu=recipe.rule_settings.get("prox_mu", 0.0),
        precision=train.precision,
    )


def server_rule(recipe: Recipe) -> ServerRule:
    """Return the method and its hyperparameters."""
    keys, values = recipe.rule.keys, recipe.rule_settings
    servers = {key: value for key, value in values.items() if not keys[key].client}
    return ServerRule(recipe.rule.name, **servers)


def schedule(recipe: Recipe, data: FederatedData | LoaderData, batching: int) -> Schedule:
    """Return what each round does, with ``batching`` clients in one set of kernels.

    Raises:
        UserError: the data set has another number of clients than the recipe.
    """
    train, validation = recipe.train_args, recipe.validation_args
    if data.num_clients != train.client_num_in_total:
        raise UserError(
            f"train_args.client_num_in_total: {train.client_num_in_total}: the data set has "
            f"{data.num_clients} clients"
        )
    return Schedule(
        rounds=train.comm_round,
        client_sizes=tuple(data.client_size(client) for client in range(data.num_clients)),
        cohort_size=train.client_num_per_round,
        seed=recipe.common_args.random_seed,
        weighting=train.client_weighting,
        test_every=validation.frequency_of_the_test,
        test_served=validation.test_served,
        max_client_failures=train.max_client_failures,
        max_client_norm=train.max_client_norm,
        batch_size=train.batch_size,
        group_size=batching,
    )
