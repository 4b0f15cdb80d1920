"""The comparators' coefficients: defaults, what is required, and a name that FedML has too."""

import types
from pathlib import Path

import pytest

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.recipe import Recipe, dump_recipe, find_recipe, load_recipe, recipe_from_args

NAMES = ("server_lr", "server_beta1", "server_beta2", "server_tau", "fedexp_epsilon")
UNUSED = "does not use it; leave it out or null (it belongs to"


def load(method: str, *settings: str) -> Recipe:
    overrides = [f"train_args.federated_optimizer={method}", "train_args.beta=null"]
    overrides += ["train_args.gamma=null", *(f"train_args.{setting}" for setting in settings)]
    return load_recipe(find_recipe("digits_noniid_b_fednnnn"), overrides)


def coefficients(recipe: Recipe) -> list[float | None]:
    return [getattr(recipe.train_args, name) for name in NAMES]


@pytest.mark.parametrize(
    ("method", "settings", "expected"),
    [
        ("FedAdam", ["server_lr=5e-2"], [0.05, 0.9, 0.99, 1e-3, None]),
        ("FedYogi", ["server_lr=1", "server_beta1=0"], [1.0, 0.0, 0.99, 1e-3, None]),
        (
            "FedAdam",
            ["server_lr=1", "server_tau=null", "server_beta2=0.5"],
            [1, 0.9, 0.5, 1e-3, None],
        ),
        ("FedExP", [], [None, None, None, None, 1e-3]),
        ("FedExP", ["fedexp_epsilon=0.1"], [None, None, None, None, 0.1]),
        ("PaperFedAvg", [], [None] * 5),
    ],
)
def test_the_methods_defaults_are_filled_in_and_written_out(
    method: str, settings: list[str], expected: list[float | None], tmp_path: Path
) -> None:
    recipe = load(method, *settings)
    assert coefficients(recipe) == expected
    copy = tmp_path / f"{recipe.name}.yaml"
    copy.write_text(dump_recipe(recipe))
    assert load_recipe(copy) == recipe
    for name, value in zip(NAMES, expected, strict=True):
        assert (f"  {name}: " in copy.read_text()) == (value is not None)


@pytest.mark.parametrize(
    ("method", "settings", "line"),
    [
        ("FedAdam", [], "server_lr: missing; FedAdam needs it: a finite number greater than 0"),
        (
            "FedYogi",
            ["server_lr=0"],
            "server_lr: 0: must be a finite number greater than 0, or null",
        ),
        (
            "FedAdam",
            ["server_lr=1", "server_beta1=1"],
            "server_beta1: 1: must be a number of at least 0 and less than 1, or null",
        ),
        ("FedExP", ["server_lr=1"], f"server_lr: 1.0: FedExP {UNUSED} FedAdam and FedYogi)"),
        ("FedExP", ["beta=0.7"], f"beta: 0.7: FedExP {UNUSED} FedNNNN and NormNorm)"),
        (
            "PaperFedAvg",
            ["fedexp_epsilon=1"],
            f"fedexp_epsilon: 1.0: PaperFedAvg {UNUSED} FedExP)",
        ),
    ],
)
def test_a_coefficient_that_is_missing_bad_or_unused_is_one_line(
    method: str, settings: list[str], line: str
) -> None:
    with pytest.raises(UserError) as raised:
        load(method, *settings)
    [only] = str(raised.value).splitlines()
    assert only.endswith(f"train_args.{line}")


def test_fedmls_server_lr_may_stand_beside_our_other_methods() -> None:
    """Its FedOpt has a key of that name; FedAdam reads it, FedNNNN leaves it alone."""
    args = {"comm_round": 1, "epochs": 1, "batch_size": 1, "learning_rate": 0.1}
    args |= {"client_num_in_total": 1, "client_num_per_round": 1, "server_lr": 0.5}
    nnnn = types.SimpleNamespace(federated_optimizer="FedNNNN", beta=0.7, gamma=0.8, **args)
    assert coefficients(recipe_from_args(nnnn)) == [None] * 5
    adam = types.SimpleNamespace(federated_optimizer="FedAdam", **args)
    assert coefficients(recipe_from_args(adam)) == [0.5, 0.9, 0.99, 1e-3, None]
    assert coefficients(recipe_from_args(adam, method="FedExP")) == [None] * 4 + [1e-3]
