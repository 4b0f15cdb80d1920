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
FEDAVG = {"federated_optimizer": "FedAvg"}


def read(**more: Any) -> Recipe:
    return script_recipe(SimpleNamespace(**NEEDED | more))


def test_settings_that_are_absent_take_the_defaults() -> None:
    recipe = read()
    assert recipe.name == "FedNNNN"
    assert recipe.rule_settings == {"beta": 0.7, "gamma": 0.8}
    assert recipe.train_args.learning_rate == 0.05
    assert recipe.train_args.client_weighting == "uniform"
    assert recipe.comm_args.backend == "sp"
    assert read(yaml_config_file="config/mine.yaml").name == "mine"


def test_settings_of_own_data_and_platform_are_free(tmp_path: Path) -> None:
    theirs = {"dataset": "femnist", "model": "resnet18_gn", "partition_method": "hetero"}
    theirs |= {"training_type": "cross_cloud", "backend": "MQTT_S3"}
    recipe = read(**theirs, start_round=4, save_path="model.safetensors")
    assert (recipe.data_args.dataset, recipe.model_args.model) == ("femnist", "resnet18_gn")
    assert recipe.data_args.partition_method == "hetero"
    assert recipe.train_args.start_round == 4
    assert recipe.tracking_args.save_path == "model.safetensors"
    stored = tmp_path / "FedNNNN.yaml"
    stored.write_text(dump_recipe(recipe))
    assert load_recipe(stored, foreign=True) == recipe
    with pytest.raises(UserError, match="'femnist': must be"):
        load_recipe(stored)


def test_settings_that_are_not_ours_are_ignored() -> None:
    """``worker_num`` FedML sets, to m, or to the size of the MPI world."""
    foreign = {"comm": object(), "worker_num": 9, "process_id": 2, "enable_defense": True}
    foreign |= {"client_id_list": object(), "data_dir": object(), "gpu_id": None}
    assert read(**foreign) == read()
    assert read(**foreign).device_args.worker_num is None


def test_settings_of_mlops_come_unparsed() -> None:
    """From the environment."""
    for given, meant in (("True", True), ("false", False), ("1", True)):
        assert read(using_mlops=given).common_args.using_mlops is meant


def test_settings_follow_the_callers_words() -> None:
    """His method replaces the script's, and his trainer may have another optimizer."""
    with pytest.raises(UserError, match="'FedAvg': must be one of PaperFedAvg"):
        read(**FEDAVG)
    norm = script_recipe(SimpleNamespace(**NEEDED | FEDAVG), method="NormNorm")
    assert (norm.rule.name, norm.rule_settings) == ("NormNorm", {"beta": 0.7})
    with pytest.raises(UserError, match="'lbfgs': must be sgd"):
        read(client_optimizer="lbfgs")
    lbfgs = SimpleNamespace(**NEEDED | {"client_optimizer": "lbfgs"})
    assert script_recipe(lbfgs, custom_trainer=True).train_args.client_optimizer == "lbfgs"


def test_settings_may_have_fedmls_server_lr() -> None:
    """Its FedOpt has a key of that name; FedAdam reads it, FedNNNN leaves it alone."""
    assert read(server_lr=0.05).rule_settings == {"beta": 0.7, "gamma": 0.8}
    adam = read(federated_optimizer="FedAdam", server_lr=0.05, beta=None, gamma=None)
    assert adam.rule_settings["server_lr"] == 0.05


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"beta": None}, "fedml.yaml: train_args.beta: missing"),
        ({"beta": 10**400}, "fedml.yaml: train_args.beta: a huge number: "),
        ({"prox_mu": 1}, "fedml.yaml: train_args.prox_mu: 1: "),
        ({"random_seed": object()}, "fedml.yaml: common_args.random_seed: a object: "),
    ],
)
def test_settings_mistakes_name_file_and_key(change: dict[str, Any], expected: str) -> None:
    with refused(expected):
        read(yaml_config_file="fedml.yaml", **change)
