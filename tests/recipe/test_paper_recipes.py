"""Every packaged recipe against the paper's tables, typed in here once more."""

import runpy
import types
from pathlib import Path
from typing import Any

import pytest
import yaml

from fednnnn_plugin.fedml.settings import script_recipe
from fednnnn_plugin.recipe import dump_recipe, list_recipes, load_recipe

# tab:params, "Summary of Hyperparameters Used in the Experiment (Common in Scenarios)"; C = 1
#            rounds  K    B   E  eta   lambda
COMMON = {
    "mnist": (100, 100, 50, 5, 0.05, 0.0),
    "cifar10": (250, 100, 50, 5, 0.05, 5e-4),
    "digits": (30, 20, 10, 5, 0.05, 0.0),  # not the paper's
}
# tab:params2, scenario-wise; columns: IID-B, NonIID-B, IID-UB, NonIID-UB, each (MNIST, CIFAR10)
SCENARIOS = ["iid_b", "noniid_b", "iid_ub", "noniid_ub"]
SCENARIO_WISE = {
    ("fedprox", "prox_mu"): [0.005, 0.015, 0.015, 0.015, 0.005, 0.005, 0.02, 0.01],
    ("normnorm", "beta"): [1.1, 0.6, 1.0, 0.6, 1.0, 0.7, 0.9, 0.7],
    ("momentum", "gamma"): [0.8, 0.9, 0.9, 0.9, 0.7, 0.9, 0.8, 0.8],
    ("fednnnn", "beta"): [0.6, 0.7, 0.7, 0.6, 0.7, 0.8, 0.7, 0.7],
    ("fednnnn", "gamma"): [0.7, 0.8, 0.8, 0.7, 0.7, 0.8, 0.8, 0.6],
}
METHODS = {"fedavg": "PaperFedAvg", "fedprox": "PaperFedProx", "normnorm": "NormNorm"}
METHODS |= {"momentum": "Momentum", "fednnnn": "FedNNNN"}
# What the paper leaves open, or has no word for: the same in all recipes.
ADAPTIVE = {"server_beta1": 0.9, "server_beta2": 0.99, "server_tau": 1e-3}
SCAFFOLD = {"client_method": "scaffold", "learning_rate": 0.03}
OWN: dict[str, Any] = yaml.safe_load("""
common_args: {training_type: simulation, random_seed: 0, using_mlops: false}
data_args: {data_cache_dir: ~/fedml_data, download: true, classes_per_client: 2, min_samples: 10,
    partition_alpha: 0.5, validation_fraction: 0.0, test_fraction: 0.2}
train_args: {client_weighting: uniform, start_round: 0, client_optimizer: sgd, precision: fp32,
    client_batching: auto, client_threads: auto, checkpoint_every: 10, max_client_failures: 0}
validation_args: {frequency_of_the_test: 1, test_served: false}
device_args: {using_gpu: true, gpu_id: 0, gpu_mapping_file: null, gpu_mapping_key: null}
comm_args: {backend: sp}
tracking_args: {enable_wandb: false}
""")


def resolved(
    dataset: str, scenario: str, method: str, exponent: float = 1.0, **more: Any
) -> dict[str, Any]:
    """What a recipe holds that has the paper's values, and ``more`` or other ``train_args``."""
    rounds, clients, batch, epochs, rate, decay = COMMON[dataset]
    classes, sizes = scenario.split("_")
    data = {
        "dataset": dataset,
        "partition_method": {"iid": "iid", "noniid": "n_class"}[classes],
        "partition_sizes": {"b": "balanced", "ub": "power_law"}[sizes],
        "power_law_exponent": exponent,
    }
    train = {
        "federated_optimizer": METHODS.get(method, method),
        "client_num_in_total": clients,
        "client_num_per_round": clients,
        "comm_round": rounds,
        "epochs": epochs,
        "batch_size": batch,
        "learning_rate": rate,
        "weight_decay": decay,
    }
    column = 2 * SCENARIOS.index(scenario) + (dataset == "cifar10")  # digits has MNIST's
    train |= {key: of[column] for (user, key), of in SCENARIO_WISE.items() if user == method}
    return OWN | {
        "data_args": OWN["data_args"] | data,
        "model_args": {"model": f"nnnn_{dataset}"},
        "train_args": OWN["train_args"] | train | more,
    }


def of_fashion_mnist(method: str) -> dict[str, Any]:
    """MNIST's values."""
    recipe = resolved("mnist", "noniid_b", method)
    return recipe | {"data_args": recipe["data_args"] | {"dataset": "FashionMNIST"}}


ALONE = {"client_num_in_total": 1, "client_num_per_round": 1}
DIGITS = ("digits", "noniid_b")
EXPECTED = {
    **{
        f"{dataset}_{scenario}_{method}": resolved(dataset, scenario, method)
        for dataset in ("mnist", "cifar10")
        for scenario in SCENARIOS
        for method in METHODS
    },
    **{f"fashionmnist_noniid_b_{method}": of_fashion_mnist(method) for method in METHODS},
    "mnist_single_client": resolved("mnist", "iid_b", "fedavg", **ALONE),
    "cifar10_single_client": resolved("cifar10", "iid_b", "fedavg", **ALONE),
    **{f"digits_noniid_b_{method}": resolved(*DIGITS, method) for method in METHODS},
    "digits_noniid_b_fedexp": resolved(*DIGITS, "FedExP", fedexp_epsilon=1e-3),
    "digits_noniid_b_fedadam": resolved(*DIGITS, "FedAdam", server_lr=0.03, **ADAPTIVE),
    "digits_noniid_b_fedyogi": resolved(*DIGITS, "FedYogi", server_lr=0.1, **ADAPTIVE),
    "digits_noniid_b_scaffold": resolved(*DIGITS, "fedavg", **SCAFFOLD),
    "digits_noniid_b_fednnnn_scaffold": resolved(*DIGITS, "fednnnn", **SCAFFOLD),
    "digits_noniid_b_fedadagrad": resolved(
        *DIGITS, "FedAdagrad", server_lr=0.1, server_beta1=0.0, server_tau=1e-3
    ),
    "digits_noniid_b_fedavgm": resolved(
        *DIGITS, "FedAvgM", server_lr=1.0, server_momentum=0.9, server_dampening=0.0
    ),
    "digits_noniid_b_feddyn": resolved(*DIGITS, "FedDyn", feddyn_alpha=0.1),
    "digits_noniid_b_fedsam": resolved(*DIGITS, "fedavg", client_method="fedsam", sam_rho=0.05),
    "digits_noniid_b_fedcm": resolved(*DIGITS, "fedavg", client_method="fedcm", fedcm_beta=0.5),
    "digits_noniid_ub_fednova": resolved(
        *("digits", "noniid_ub", "fedavg", 0.7), client_method="fednova", client_weighting="samples"
    ),
    "digits_noniid_ub_fednnnn": resolved("digits", "noniid_ub", "fednnnn", exponent=0.7),
}


def test_recipes_are_the_papers_conditions_and_ours() -> None:
    assert [path.stem for path in list_recipes()] == sorted(EXPECTED)


def test_recipes_of_the_paper_are_as_their_generator_writes_them() -> None:
    folder = Path(__file__).parents[2] / "recipes"
    written = runpy.run_path(str(folder / "make.py"))["written_recipes"]()
    assert len(written) == 45
    assert written == {name: (folder / name).read_text() for name in written}


@pytest.mark.parametrize("path", list_recipes(), ids=lambda path: path.stem)
def test_recipe_has_the_tables_values_for_fedml_too(path: Path) -> None:
    recipe = load_recipe(path)
    assert yaml.safe_load(dump_recipe(recipe)) == EXPECTED[path.stem]
    sections = yaml.safe_load(path.read_text())
    flat = {key: value for keys in sections.values() for key, value in keys.items()}
    flat |= {"yaml_config_file": str(path), "worker_num": 7}  # as FedML's Arguments have it
    assert script_recipe(types.SimpleNamespace(**flat)) == recipe
    # FedML reads these without a default, and computes with the last two: PyYAML reads no 5e-4.
    needed = {"gpu_id", "gpu_mapping_file", "gpu_mapping_key", "enable_wandb", "backend"}
    assert needed <= flat.keys()
    assert isinstance(flat["learning_rate"], float)
    assert isinstance(flat["weight_decay"], float)
