"""The rules' keys in a recipe: defaults, ranges, what is missing or another's; a user's rule."""

import re
from pathlib import Path

import pytest
import yaml

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.recipe import Recipe, dump_recipe, find_recipe, load_recipe
from fednnnn_plugin.server import rules

#: The keys without a default, of the methods that have some.
NEEDED = {
    **{"FedNNNN": ["beta", "gamma"], "NormNorm": ["beta"], "Momentum": ["gamma"]},
    **{"PaperFedProx": ["prox_mu"], "FedAdam": ["server_lr"], "FedYogi": ["server_lr"]},
    **{"FedAdagrad": ["server_lr"], "FedDyn": ["feddyn_alpha"]},
}


def load(method: str, *settings: str, allow_code: bool = False) -> Recipe:
    overrides = [f"federated_optimizer={method}", "beta=null", "gamma=null", *settings]
    return load_recipe(find_recipe("digits_noniid_b_fednnnn"), overrides, allow_code=allow_code)


def lines(method: str, *settings: str, allow_code: bool = False) -> list[str]:
    with pytest.raises(UserError) as raised:
        load(method, *settings, allow_code=allow_code)
    return str(raised.value).splitlines()


def test_method_has_its_defaults_written_out(tmp_path: Path) -> None:
    recipe = load("FedYogi", "server_lr=1", "train_args.server_beta1=0")
    assert recipe.rule is rules.RULES["FedYogi"]
    others = {"server_beta2": 0.99, "server_tau": 1e-3}
    assert recipe.rule_settings == {"server_lr": 1, "server_beta1": 0, **others}
    assert all(isinstance(value, float) for value in recipe.rule_settings.values())
    copy = tmp_path / f"{recipe.name}.yaml"
    copy.write_text(dump_recipe(recipe))
    assert load_recipe(copy) == recipe
    written = yaml.safe_load(copy.read_text())["train_args"]
    assert others.items() <= written.items()
    assert "rule_settings" not in written


@pytest.mark.parametrize("method", rules.RULES)
def test_method_asks_for_keys_without_a_default(method: str) -> None:
    if method in NEEDED:
        for line, key in zip(lines(method), NEEDED[method], strict=True):
            assert f"train_args.{key}: " in line
    else:
        assert load(method).train_args.federated_optimizer == method


USERS = """
from fednnnn_plugin import ClientMethod
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

@rule(gamma=decay())
class Half(Optimizer):
    def __init__(self, params, gamma):
        super().__init__(params, {"gamma": gamma})

class Unmarked(Optimizer):
    pass

@rule(client_method="prox")
class Misled(Optimizer):
    pass

class Pull(ClientMethod):
    keys = {"pull": positive()}
    def __init__(self, pull):
        self.prox_mu = pull

class Push(Pull):
    keys = {"pull": positive(default=1.0)}

@rule(pull=positive(grid=(1.0, 2.0)), client_method="lion_rules:Pull")
class Pulled(Optimizer):
    def __init__(self, params, pull):
        super().__init__(params, {"pull": pull})

@rule(pull=positive(), client_method="lion_rules:Push")
class Pushed(Pulled):
    pass
"""


@pytest.fixture
def users(own_code: Path) -> str:
    """The module of a user's rules."""
    (own_code / "lion_rules.py").write_text(USERS)
    return "lion_rules"


def test_users_rule_is_a_method_with_the_flag(users: str) -> None:
    method = f"{users}:Lion"
    recipe = load(method, "lion_lr=5e-4", allow_code=True)
    assert recipe.rule.name == recipe.train_args.federated_optimizer == method
    assert recipe.rule_settings == {"lion_lr": 5e-4, "lion_beta": 0.9}
    [line] = lines(method, "lion_lr=5e-4")  # without it, though it is loaded
    assert line.startswith(f"--set train_args.federated_optimizer: '{method}' ")


@pytest.mark.parametrize(
    ("overrides", "kept"),
    [
        (["federated_optimizer=NormNorm"], {"beta": 0.7}),
        (["federated_optimizer=lion_rules:Half"], {"gamma": 0.8}),
        (["federated_optimizer=PaperFedAvg", "client_method=fedprox", "prox_mu=1"], {"prox_mu": 1}),
    ],
)
def test_keys_of_a_replaced_method_are_left_out(
    users: str, tmp_path: Path, overrides: list[str], kept: dict[str, float]
) -> None:
    """Those that it has alone; one that an override gives is judged by the new method."""
    recipe = find_recipe("digits_noniid_b_fednnnn")
    assert load_recipe(recipe, overrides, allow_code=True).rule_settings == kept
    with pytest.raises(UserError, match=r"^--set train_args\.server_lr: 1: .* does not use it"):
        load_recipe(recipe, [*overrides, "server_lr=1"], allow_code=True)
    mine = tmp_path / "mine.yaml"  # with a key of neither
    mine.write_text(recipe.read_text().replace("beta:", "server_tau: 1\n  beta:"))
    with pytest.raises(UserError, match=r"train_args\.server_tau: 1: .* does not use it"):
        load_recipe(mine, overrides, allow_code=True)


def test_rule_and_its_custom_client_method_share_a_key(users: str) -> None:
    recipe = load(f"{users}:Pulled", "pull=2", allow_code=True)
    assert recipe.rule_settings == {"pull": 2.0}
    assert recipe.client_method.__name__ == "Pull"


@pytest.mark.parametrize(
    ("method", "settings", "told"),
    [
        ("FedYogi", ["server_lr=0"], "server_lr: 0: "),
        ("FedExP", ["server_lr=0"], "server_lr: 0: .*FedAdam and .*FedYogi"),
        ("fednnnn", [], "federated_optimizer: 'fednnnn': .*FedNNNN"),
        ("FedAvg", [], r"federated_optimizer: 'FedAvg': .*did you mean PaperFedAvg\?"),
        ("null", [], "federated_optimizer: .*PaperFedAvg, "),
        ("lion_rules:Lion", [], "lion_lr: "),
        ("lion_rules:Lion", ["lion_lr=1", "lion_beta=1"], "lion_beta: 1: "),
        ("lion_rules:Greedy", [], "federated_optimizer: lion_rules:Greedy: .*epochs"),
        ("lion_rules:Misled", [], "client_method: 'prox', which lion_rules:Misled .*fedprox"),
        ("lion_rules:Pulled", ["pull=1", "client_method=fedprox"], "client_method: .*s is lion_"),
        ("lion_rules:Pushed", ["pull=1"], "client_method: lion_rules:Push: .* pull .*default"),
        ("lion_rules:Unmarked", [], "federated_optimizer: lion_rules:Unmarked: .*@"),
    ],
)
@pytest.mark.usefixtures("users")
def test_method_with_a_mistake_is_one_line(method: str, settings: list[str], told: str) -> None:
    [said] = lines(method, *settings, allow_code=True)
    assert re.search(rf"train_args\.{told}", said)
    assert said.isprintable()
