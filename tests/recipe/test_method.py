"""The rules' keys in a recipe: defaults, ranges, what is missing or another's; a user's rule."""

import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.recipe import (
    Recipe,
    differences,
    dump_recipe,
    find_recipe,
    load_recipe,
    recipe_from_args,
)
from fednnnn_plugin.server import rules

UNUSED = "does not use it; leave it out or null (it belongs to"
ADAM = {"server_lr": 0.05, "server_beta1": 0.9, "server_beta2": 0.99, "server_tau": 1e-3}


def load(method: str, *settings: str, allow_code: bool = False) -> Recipe:
    overrides = [f"federated_optimizer={method}", "beta=null", "gamma=null", *settings]
    return load_recipe(find_recipe("digits_noniid_b_fednnnn"), overrides, allow_code=allow_code)


def only_line(method: str, *settings: str, allow_code: bool = False) -> str:
    with pytest.raises(UserError) as raised:
        load(method, *settings, allow_code=allow_code)
    [line] = str(raised.value).splitlines()
    return line


@pytest.mark.parametrize(
    ("method", "settings", "expected"),
    [
        ("FedNNNN", ["beta=7E-1", "train_args.gamma=0"], {"beta": 0.7, "gamma": 0.0}),
        ("PaperFedProx", ["prox_mu=0.01"], {"prox_mu": 0.01}),
        ("FedAdam", ["server_lr=5e-2"], ADAM),
        ("FedYogi", ["server_lr=1", "server_beta1=0"], ADAM | {"server_lr": 1, "server_beta1": 0}),
        ("FedAdam", ["server_lr=0.05", "server_tau=null"], ADAM),
        ("FedExP", [], {"fedexp_epsilon": 1e-3}),
        ("PaperFedAvg", [], {}),
    ],
)
def test_the_rules_defaults_are_filled_in_and_written_out(
    method: str, settings: list[str], expected: dict[str, float], tmp_path: Path
) -> None:
    recipe = load(method, *settings)
    assert recipe.rule is rules.RULES[method]
    assert recipe.rule_settings == expected
    assert all(isinstance(value, float) for value in recipe.rule_settings.values())
    copy = tmp_path / f"{recipe.name}.yaml"
    copy.write_text(dump_recipe(recipe))
    assert load_recipe(copy) == recipe
    written = yaml.safe_load(copy.read_text())["train_args"]
    assert expected.items() <= written.items()
    assert "rule_settings" not in written


@pytest.mark.parametrize("method", rules.RULES)
def test_every_key_without_a_default_is_asked_for(method: str) -> None:
    needed = [name for name, key in rules.RULES[method].keys.items() if key.default is None]
    if not needed:
        assert load(method).train_args.federated_optimizer == method
        return
    with pytest.raises(UserError) as raised:
        load(method)
    lines = str(raised.value).splitlines()
    assert [line.split("train_args.")[1].split(":")[0] for line in lines] == needed
    assert all(f"missing; {method} needs it: a " in line for line in lines)


@pytest.mark.parametrize(
    ("method", "settings", "line"),
    [
        ("FedYogi", ["server_lr=0"], "server_lr: 0: must be a finite number greater than 0"),
        ("PaperFedProx", ["prox_mu=-1"], "prox_mu: -1: must be a finite number of at least 0"),
        ("FedExP", ["server_lr=1"], f"server_lr: 1: FedExP {UNUSED} FedAdam and FedYogi)"),
        ("FedExP", ["beta=0.7"], f"beta: 0.7: FedExP {UNUSED} NormNorm and FedNNNN)"),
        ("PaperFedAvg", ["rule_settings=1"], "rule_settings: unknown key; did you mean"),
        ("PaperFedAvg", ["fedexp_epsilom=1"], "unknown key; did you mean train_args.fedexp_eps"),
        ("FedAvg", [], "'FedAvg': must be one of PaperFedAvg, PaperFedProx, NormNorm, Momentum, "),
        ("FedAvg", [], "; did you mean PaperFedAvg?"),
        ("fednnnn", [], "; did you mean FedNNNN?"),
        ("null", [], "train_args.federated_optimizer: missing; must be one of PaperFedAvg, "),
        ("[1]", [], "train_args.federated_optimizer: a list: must be one of PaperFedAvg, "),
    ],
)
def test_a_bad_key_or_method_is_one_line(method: str, settings: list[str], line: str) -> None:
    assert line in only_line(method, *settings)


def test_a_bad_method_hides_no_other_mistake() -> None:
    with pytest.raises(UserError) as raised:
        load("FedNNN", "server_lr=-1", "epochs=0")
    keys = [line.split(":")[0] for line in str(raised.value).splitlines()]
    assert [key.rpartition(".")[2] for key in keys] == [
        "federated_optimizer",
        "server_lr",
        "epochs",
    ]


def test_fedmls_server_lr_may_stand_beside_our_other_methods() -> None:
    """Its FedOpt has a key of that name; FedAdam reads it, FedNNNN leaves it alone."""
    args = {"comm_round": 1, "epochs": 1, "batch_size": 1, "learning_rate": 0.1}
    args |= {"client_num_in_total": 1, "client_num_per_round": 1, "server_lr": 0.05}
    nnnn = types.SimpleNamespace(federated_optimizer="FedNNNN", beta=0.7, gamma=0.8, **args)
    assert recipe_from_args(nnnn).rule_settings == {"beta": 0.7, "gamma": 0.8}
    adam = types.SimpleNamespace(federated_optimizer="FedAdam", **args)
    assert recipe_from_args(adam).rule_settings == ADAM
    assert recipe_from_args(adam, method="FedExP").rule_settings == {"fedexp_epsilon": 1e-3}


USERS = """
from torch.optim import Optimizer
from fednnnn_plugin.server.rules import decay, positive, rule

@rule(lion_lr=positive(), lion_beta=decay(default=0.9))
class Lion(Optimizer):
    def __init__(self, params, lion_lr, lion_beta):
        super().__init__(params, {"lr": lion_lr, "beta": lion_beta})

@rule(epochs=positive())
class Greedy(Optimizer):
    def __init__(self, params, epochs):
        super().__init__(params, {"epochs": epochs})

class Unmarked(Optimizer):
    pass
"""


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The module of a user's rules, in the current directory; what it registers is taken back."""
    before = dict(rules.RULES)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lion_rules.py").write_text(USERS)
    yield "lion_rules"
    sys.modules.pop("lion_rules", None)
    rules.RULES.clear()
    rules.RULES.update(before)


def test_a_users_rule_is_a_method_with_the_flag(users: str, tmp_path: Path) -> None:
    method = f"{users}:Lion"
    recipe = load(method, "lion_lr=5e-4", allow_code=True)
    assert recipe.rule.name == recipe.train_args.federated_optimizer == method
    assert recipe.rule_settings == {"lion_lr": 5e-4, "lion_beta": 0.9}
    copy = tmp_path / f"{recipe.name}.yaml"
    copy.write_text(dump_recipe(recipe))
    assert differences(load_recipe(copy, allow_code=True), recipe) == {}
    other = load(method, "lion_lr=1", allow_code=True)
    assert differences(recipe, other) == {"train_args.lion_lr": (5e-4, 1.0)}
    flat = {key: v for keys in yaml.safe_load(copy.read_text()).values() for key, v in keys.items()}
    args = types.SimpleNamespace(**flat)
    assert recipe_from_args(args, allow_code=True).rule_settings == recipe.rule_settings


def test_a_users_rule_does_not_run_without_the_flag(users: str) -> None:
    line = only_line(f"{users}:Lion", "lion_lr=1")
    assert line.startswith("--set train_args.federated_optimizer: 'lion_rules:Lion' is code")
    assert "--allow-code" in line
    assert users not in sys.modules
    allowed = load(f"{users}:Lion", "lion_lr=1", allow_code=True)
    assert load(f"{users}:Lion", "lion_lr=1") == allowed  # in this process it is known from here on


@pytest.mark.parametrize(
    ("method", "settings", "line"),
    [
        ("lion_rules:Lion", [], "lion_lr: missing; lion_rules:Lion needs it: a finite number"),
        ("lion_rules:Lion", ["lion_lr=1", "lion_beta=1"], "lion_beta: 1: must be a number of at"),
        ("lion_rules:Lion", ["lion_lr=1", "lion_bta=1"], "did you mean train_args.lion_beta?"),
        ("lion_rules:Lion", ["lion_lr=1", "server_lr=1"], "it belongs to FedAdam and FedYogi"),
        ("lion_rules:Greedy", [], "its key epochs is every recipe's"),
        ("lion_rules:Unmarked", [], "must be a class with @"),
        ("lion_rules:Tiger", [], "Tiger is not there"),
        ("no_such_rules:Lion", [], "no module no_such_rules"),
    ],
)
def test_a_mistake_in_a_users_rule_is_one_line(
    users: str, method: str, settings: list[str], line: str
) -> None:
    assert users
    assert line in only_line(method, *settings, allow_code=True)
