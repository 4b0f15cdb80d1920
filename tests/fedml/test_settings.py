"""FedML's flat namespace to a recipe, as an unmodified entry script has it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.fedml.settings import script_recipe
from fednnnn_plugin.recipe import Recipe, dump_recipe, load_recipe

from .rounds import refused

NEEDED: dict[str, Any] = {"federated_optimizer": "FedNNNN", "beta": "7e-1", "gamma": 0.8}
NEEDED |= {"client_num_in_total": 5, "client_num_per_round": 3, "comm_round": 2, "epochs": 1}
NEEDED |= {"batch_size": 4, "learning_rate": "5e-2"}
RULE = {"beta": 0.7, "gamma": 0.8}


def read(given: dict[str, Any] | None = None, **more: Any) -> Recipe:
    return script_recipe(SimpleNamespace(**NEEDED | (given or {})), **more)


def test_settings_of_own_data_and_platform_are_free(tmp_path: Path) -> None:
    theirs = {"dataset": "femnist", "model": "resnet18_gn", "partition_method": "hetero"}
    theirs |= {"training_type": "cross_cloud", "backend": "MQTT_S3"}
    recipe = read({**theirs, "start_round": 4, "yaml_config_file": "config/mine.yaml"})
    assert (recipe.name, read().name) == ("mine", "FedNNNN")
    assert (recipe.data_args.dataset, recipe.model_args.model) == ("femnist", "resnet18_gn")
    assert recipe.data_args.partition_method == "hetero"
    assert (recipe.train_args.start_round, recipe.train_args.learning_rate) == (4, 0.05)
    stored = tmp_path / "mine.yaml"
    stored.write_text(dump_recipe(recipe))
    assert load_recipe(stored, foreign=True) == recipe
    with pytest.raises(UserError, match="'femnist': must be"):
        load_recipe(stored)


def test_settings_that_are_not_ours_are_ignored() -> None:
    """``worker_num`` FedML sets, to m or the size of the MPI world; ``server_lr`` is FedOpt's."""
    foreign = {"comm": object(), "worker_num": 9, "process_id": 2, "enable_defense": True}
    foreign |= {"client_id_list": object(), "data_dir": object(), "gpu_id": None, "server_lr": 0.05}
    assert read(foreign) == read()
    assert read().rule_settings == RULE
    adam = {"federated_optimizer": "FedAdam", "server_lr": 0.05, "beta": None, "gamma": None}
    assert read(adam).rule_settings["server_lr"] == 0.05
    for given, meant in (("True", True), ("false", False), ("1", True)):  # from the environment
        assert read({"using_mlops": given}).common_args.using_mlops is meant


def test_settings_follow_the_callers_words() -> None:
    """His method replaces the script's, and his trainer may have another optimizer."""
    norm = read({"federated_optimizer": "FedAvg"}, method="NormNorm")
    assert (norm.rule.name, norm.rule_settings) == ("NormNorm", {"beta": 0.7})
    own = read({"client_optimizer": "lbfgs"}, custom_trainer=True)
    assert own.train_args.client_optimizer == "lbfgs"


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"beta": None}, "train_args.beta: missing"),
        ({"beta": 10**400}, "train_args.beta: a huge number: "),
        ({"prox_mu": 1}, "train_args.prox_mu: 1: "),
        ({"random_seed": object()}, "common_args.random_seed: a object: "),
        ({"federated_optimizer": "FedAvg"}, "train_args.federated_optimizer: 'FedAvg': "),
        ({"client_optimizer": "lbfgs"}, "train_args.client_optimizer: 'lbfgs': must be sgd"),
    ],
)
def test_settings_mistakes_name_file_and_key(change: dict[str, Any], key: str) -> None:
    with refused(f"fedml.yaml: {key}"):
        read({**change, "yaml_config_file": "fedml.yaml"})
