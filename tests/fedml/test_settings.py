"""FedML's flat namespace to a recipe, as an unmodified entry script has it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.fedml.settings import script_recipe
from fednnnn_plugin.recipe import dump_recipe, load_recipe

NEEDED: dict[str, Any] = {"federated_optimizer": "FedNNNN", "beta": "7e-1", "gamma": 0.8}
NEEDED |= {"client_num_in_total": 5, "client_num_per_round": 3, "comm_round": 2, "epochs": 1}
NEEDED |= {"batch_size": 4, "learning_rate": "5e-2"}


def args(**more: Any) -> SimpleNamespace:
    return SimpleNamespace(**{**NEEDED, **more})


def test_absent_keys_take_the_defaults() -> None:
    recipe = script_recipe(args())
    assert recipe.name == "FedNNNN"
    assert recipe.rule_settings == {"beta": 0.7, "gamma": 0.8}
    assert recipe.train_args.learning_rate == 0.05
    assert recipe.train_args.client_weighting == "uniform"
    assert recipe.comm_args.backend == "sp"
    assert script_recipe(args(yaml_config_file="config/mine.yaml")).name == "mine"


def test_own_data_model_and_platform_are_free(tmp_path: Path) -> None:
    theirs = {"dataset": "femnist", "model": "resnet18_gn", "partition_method": "hetero"}
    theirs |= {"training_type": "cross_cloud", "backend": "MQTT_S3"}
    recipe = script_recipe(args(**theirs, start_round=4, save_path="model.safetensors"))
    assert (recipe.data_args.dataset, recipe.model_args.model) == ("femnist", "resnet18_gn")
    assert recipe.data_args.partition_method == "hetero"
    assert recipe.train_args.start_round == 4
    assert recipe.tracking_args.save_path == "model.safetensors"
    stored = tmp_path / "FedNNNN.yaml"
    stored.write_text(dump_recipe(recipe))
    assert load_recipe(stored, foreign=True) == recipe
    with pytest.raises(UserError, match="'femnist': must be one of mnist"):
        load_recipe(stored)


def test_what_is_not_ours_is_ignored() -> None:
    foreign = {
        "comm": object(),
        "worker_num": 9,  # set by FedML: to m, or to the size of the MPI world
        "process_id": 2,
        "enable_defense": True,
        "client_id_list": object(),
        "data_dir": object(),  # of image folders only
        "gpu_id": None,
    }
    assert script_recipe(args(**foreign)) == script_recipe(args())
    assert script_recipe(args(**foreign)).device_args.worker_num is None


def test_using_mlops_comes_unparsed_from_the_environment() -> None:
    for given, meant in (("True", True), ("false", False), ("1", True)):
        assert script_recipe(args(using_mlops=given)).common_args.using_mlops is meant


def test_method_of_the_caller_replaces_the_scripts() -> None:
    fedavg = args(federated_optimizer="FedAvg")
    with pytest.raises(UserError, match="'FedAvg': must be one of PaperFedAvg"):
        script_recipe(fedavg)
    norm = script_recipe(fedavg, method="NormNorm")
    assert (norm.rule.name, norm.rule_settings) == ("NormNorm", {"beta": 0.7})


def test_server_lr_may_stand_beside_other_methods() -> None:
    """Its FedOpt has a key of that name; FedAdam reads it, FedNNNN leaves it alone."""
    assert script_recipe(args(server_lr=0.05)).rule_settings == {"beta": 0.7, "gamma": 0.8}
    adam = args(federated_optimizer="FedAdam", server_lr=0.05, beta=None, gamma=None)
    assert script_recipe(adam).rule_settings["server_lr"] == 0.05


def test_another_client_optimizer_needs_the_callers_trainer() -> None:
    lbfgs = args(client_optimizer="lbfgs")
    with pytest.raises(UserError, match="'lbfgs': must be sgd"):
        script_recipe(lbfgs)
    assert script_recipe(lbfgs, custom_trainer=True).train_args.client_optimizer == "lbfgs"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"beta": None}, "fedml.yaml: train_args.beta: missing; FedNNNN needs it"),
        ({"beta": 10**400}, "train_args.beta: a huge number: must be a finite number greater"),
        ({"prox_mu": 1}, "train_args.prox_mu: 1: FedNNNN does not use it"),
        ({"random_seed": object()}, "common_args.random_seed: a object: must be a whole number"),
    ],
)
def test_mistakes_are_lines_with_the_files_name(change: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError) as caught:
        script_recipe(args(yaml_config_file="fedml.yaml", **change))
    (line,) = str(caught.value).splitlines()
    assert expected in line
