"""Every packaged recipe against the paper's tables, typed in here once more."""

import hashlib
import types
from pathlib import Path
from typing import Any

import pytest
import yaml

from fednnnn_plugin.fedml.settings import script_recipe
from fednnnn_plugin.recipe import Recipe, dump_recipe, list_recipes, load_recipe

RECIPES = Path(__file__).parents[2] / "recipes"
# Of what the recipes resolve to: no change of the package may change it unseen.
RESOLVED = "615d5f62cf0a465d9d68dfbe4990758a365d90f53b5906aeb4004b81ad477e5c"

# tab:params, "Summary of Hyperparameters Used in the Experiment (Common in Scenarios)"
#            rounds  C  K    B   E  eta   lambda
COMMON = {
    "mnist": (100, 1, 100, 50, 5, 0.05, 0.0),
    "cifar10": (250, 1, 100, 50, 5, 0.05, 5e-4),
}
# tab:params2, scenario-wise; columns: IID-B, NonIID-B, IID-UB, NonIID-UB, each (MNIST, CIFAR10)
SCENARIOS = [("iid", "b"), ("noniid", "b"), ("iid", "ub"), ("noniid", "ub")]
SCENARIO_WISE = {
    ("fedprox", "prox_mu"): [0.005, 0.015, 0.015, 0.015, 0.005, 0.005, 0.02, 0.01],
    ("normnorm", "beta"): [1.1, 0.6, 1.0, 0.6, 1.0, 0.7, 0.9, 0.7],
    ("momentum", "gamma"): [0.8, 0.9, 0.9, 0.9, 0.7, 0.9, 0.8, 0.8],
    ("fednnnn", "beta"): [0.6, 0.7, 0.7, 0.6, 0.7, 0.8, 0.7, 0.7],
    ("fednnnn", "gamma"): [0.7, 0.8, 0.8, 0.7, 0.7, 0.8, 0.8, 0.6],
}
METHODS = {
    "fedavg": "PaperFedAvg",
    "fedprox": "PaperFedProx",
    "normnorm": "NormNorm",
    "momentum": "Momentum",
    "fednnnn": "FedNNNN",
}
COMPARATORS = {"fedexp": "FedExP", "fedadam": "FedAdam", "fedyogi": "FedYogi"}
PAPER = [
    (dataset, classes, sizes, method)
    for dataset in COMMON
    for classes, sizes in SCENARIOS
    for method in METHODS
]
OTHERS = [
    *(f"digits_noniid_b_{method}" for method in METHODS | COMPARATORS),
    "digits_noniid_b_scaffold",
    "digits_noniid_b_fednnnn_scaffold",
    "digits_noniid_ub_fednnnn",
    "mnist_single_client",
    "cifar10_single_client",
]


def load(name: str) -> Recipe:
    return load_recipe(RECIPES / f"{name}.yaml")


def test_every_recipe_resolves_as_ever() -> None:
    text = "".join(dump_recipe(load_recipe(path)) for path in list_recipes())
    assert hashlib.sha256(text.encode()).hexdigest() == RESOLVED


def test_there_are_the_forty_conditions_and_thirteen_more() -> None:
    expected = {"_".join(parts) for parts in PAPER} | set(OTHERS)
    assert len(expected) == 53
    assert [path.stem for path in list_recipes()] == sorted(expected)


@pytest.mark.parametrize(("dataset", "classes", "sizes", "method"), PAPER)
def test_holds_the_papers_values(dataset: str, classes: str, sizes: str, method: str) -> None:
    recipe = load(f"{dataset}_{classes}_{sizes}_{method}")
    train, data = recipe.train_args, recipe.data_args

    rounds, share, clients, batch, epochs, rate, decay = COMMON[dataset]
    assert train.comm_round == rounds
    assert (train.client_num_in_total, train.client_num_per_round) == (clients, share * clients)
    assert (train.batch_size, train.epochs) == (batch, epochs)
    assert (train.learning_rate, train.weight_decay) == (rate, decay)
    assert (train.client_optimizer, train.client_weighting) == ("sgd", "uniform")

    column = 2 * SCENARIOS.index((classes, sizes)) + ["mnist", "cifar10"].index(dataset)
    assert train.federated_optimizer == METHODS[method]
    assert recipe.rule_settings == {
        key: values[column] for (user, key), values in SCENARIO_WISE.items() if user == method
    }

    assert data.dataset == dataset
    assert recipe.model_args.model == f"nnnn_{dataset}"
    assert data.partition_method == {"iid": "iid", "noniid": "n_class"}[classes]
    assert data.partition_sizes == {"b": "balanced", "ub": "power_law"}[sizes]
    assert (data.classes_per_client, data.power_law_exponent) == (2, 1.0)


@pytest.mark.parametrize("dataset", ["mnist", "cifar10"])
def test_the_single_client_has_all_the_data_and_the_papers_settings(dataset: str) -> None:
    train = load(f"{dataset}_single_client").train_args
    reference = load(f"{dataset}_iid_b_fedavg").train_args
    alone: dict[str, Any] = {"client_num_in_total": 1, "client_num_per_round": 1}
    assert train == reference.model_copy(update=alone)


@pytest.mark.parametrize("path", list_recipes(), ids=lambda path: path.stem)
def test_fedmls_namespace_gives_the_same_recipe_and_has_what_fedml_reads(path: Path) -> None:
    sections = yaml.safe_load(path.read_text())
    flat = {key: value for keys in sections.values() for key, value in keys.items()}
    flat |= {"yaml_config_file": str(path), "worker_num": 7}  # as FedML's Arguments have it
    args = types.SimpleNamespace(**flat)
    assert script_recipe(args) == load_recipe(path)
    for key in ("gpu_id", "gpu_mapping_file", "gpu_mapping_key", "enable_wandb", "backend"):
        assert hasattr(args, key), key
    # FedML's torch code computes with these: PyYAML must have read numbers.
    assert isinstance(args.learning_rate, float)
    assert isinstance(args.weight_decay, float)
