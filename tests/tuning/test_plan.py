"""The paper's procedure: which values, which condition, which rounds."""

from itertools import product

import pytest
import yaml

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.recipe import Recipe, dump_recipe
from fednnnn_plugin.tuning.options import Options, options_of
from fednnnn_plugin.tuning.plan import described, make_plan, trial_recipes

from .conftest import loader


def recipe(name: str, *own: str) -> Recipe:
    return loader(name, *own)([])


def test_plan_has_the_papers_learning_rates() -> None:
    rate, own = make_plan(recipe("mnist_iid_ub_fednnnn"), Options()).steps
    assert (rate.method, rate.rounds) == ("PaperFedAvg", 50)
    assert rate.grid["learning_rate"] == tuple(round(0.01 * n, 2) for n in range(2, 16))
    assert (own.method, list(own.grid)) == ("FedNNNN", ["beta", "gamma"])
    rate, own = make_plan(recipe("cifar10_noniid_b_fedprox"), Options()).steps
    assert rate.rounds == 30
    assert rate.grid == {"learning_rate": (0.01, 0.03, 0.05, 0.07, 0.09, 0.11)}
    assert list(own.grid) == ["prox_mu"]


def test_plan_contains_the_papers_choices() -> None:
    scenarios = product(("mnist", "cifar10"), ("iid", "noniid"), ("b", "ub"))
    methods = ("fedprox", "normnorm", "momentum", "fednnnn")
    for scenario, method in product(scenarios, methods):
        base = recipe("_".join((*scenario, method)))
        own = make_plan(base, Options()).steps[-1]
        assert all(value in own.grid[key] for key, value in base.rule_settings.items())
    # A comparator has the grid of its rule's keys, or a learning rate only.
    for method, keys in {"fedexp": [], "fedadam": ["server_lr"]}.items():
        rate, *steps = make_plan(recipe(f"digits_noniid_b_{method}"), Options()).steps
        assert rate.method == "PaperFedAvg"
        assert [key for step in steps for key in step.grid] == keys


def test_plan_searches_what_the_grids_name() -> None:
    base = recipe("digits_noniid_b_fednnnn")
    [own] = make_plan(base, Options(grid={"gamma": (0.5, 0.6)}, rounds=3)).steps
    assert (own.grid, own.rounds) == ({"gamma": (0.5, 0.6)}, 3)
    grids = {"learning_rate": (0.05,), "weight_decay": (0.0, 5e-4)}
    (rate,) = make_plan(recipe("cifar10_noniid_b_fedavg"), Options(grid=grids)).steps
    assert (rate.method, len(rate)) == ("PaperFedAvg", 2)
    both = Options(grid={"gamma": (0.5, 0.6), "learning_rate": (0.02, 0.05, 0.1)}, rounds=3)
    assert [len(step) for step in make_plan(base, both).steps] == [3, 2]
    [joint] = make_plan(base, both._replace(paper=False)).steps
    assert (joint.method, len(joint), joint.rounds) == ("FedNNNN", 6, 3)
    many = tuple(0.001 * n for n in range(1, 100))
    with pytest.raises(UserError, match="9801 combinations"):
        make_plan(base, Options(grid={"beta": many, "gamma": many}))


def test_plan_searches_learning_rate_on_fedavg() -> None:
    own_data = ("partition_method=dirichlet", "partition_alpha=0.3", "min_samples=5")
    load = loader("mnist_iid_ub_fednnnn", *own_data)
    plan = make_plan(load([]), Options(paper=True, validation=0.25))
    rate, own = plan.steps
    for step in plan.steps:
        [tried] = trial_recipes(load, plan, step, next(step.points())).values()
        assert tried.data_args.validation_fraction == 0.25
    tried = trial_recipes(load, plan, rate, {"learning_rate": 0.07})[""]
    assert tried.train_args.federated_optimizer == "PaperFedAvg"
    assert tried.data_args.partition_method == "n_class"
    assert tried.data_args.partition_sizes == "balanced"
    assert (tried.train_args.learning_rate, tried.train_args.comm_round) == (0.07, 50)
    # The method's own values under the recipe's own condition.
    tried = trial_recipes(load, plan, own, {"learning_rate": 0.07, "beta": 0.9, "gamma": 0.6})[""]
    assert tried.train_args.federated_optimizer == "FedNNNN"
    assert tried.data_args.partition_method == "dirichlet"
    assert tried.data_args.partition_sizes == "power_law"
    train = yaml.safe_load(dump_recipe(tried))["train_args"]
    assert (train["beta"], train["gamma"], train["learning_rate"]) == (0.9, 0.6, 0.07)
    assert "the paper's procedure" in next(described(load, plan))
    natural = ("partition_method=natural", "dataset=hf:writers", "test_division=within_clients")
    natural += ("partition_by=writer",)
    load = loader("mnist_noniid_b_fednnnn", *natural)
    tried = trial_recipes(load, plan, rate, {"learning_rate": 0.07})[""]
    assert (tried.data_args.partition_by, tried.data_args.test_division) == (None, None)
    own_owners = load(["data_args.dataset=mine:load", "data_args.partition_by=null"])
    with pytest.raises(UserError, match=r"^tune: --paper: .* divided; .*--grid"):
        make_plan(own_owners, Options(paper=True))


@pytest.mark.parametrize(
    ("schedule", "rounds"),
    [
        ("cosine", 7),
        ("{name: cosine, warmup_rounds: 2}", 5),
        ("{name: cosine, rounds: 20}", 20),
    ],
)
def test_cosine_of_all_rounds_is_over_those_of_a_trial(schedule: str, rounds: int) -> None:
    load = loader("digits_noniid_b_fednnnn", f"learning_rate_schedule={schedule}")
    plan = make_plan(load([]), Options(grid={"beta": (0.5,)}, rounds=7, paper=False))
    tried = trial_recipes(load, plan, plan.steps[-1], {"beta": 0.5})[""]
    assert tried.train_args.learning_rate_schedule["rounds"] == rounds


def test_plan_of_ones_own_recipe_is_joint() -> None:
    own = ("partition_method=dirichlet", "partition_alpha=0.3", "client_num_in_total=12")
    load = loader("digits_noniid_b_fednnnn", *own, "client_num_per_round=12")
    grids = {"learning_rate": (0.02, 0.05), "weight_decay": (0.0, 1e-4), "epochs": (1.0, 2.0)}
    plan = make_plan(load([]), Options(grid=grids))
    (step,) = plan.steps
    assert (step.method, len(step), step.rounds) == ("FedNNNN", 8, load([]).train_args.comm_round)
    tried = trial_recipes(load, plan, step, {"learning_rate": 0.02, "epochs": 2.0})[""]
    assert tried.train_args.federated_optimizer == "FedNNNN"
    assert (tried.data_args.partition_method, tried.data_args.partition_alpha) == ("dirichlet", 0.3)
    assert (tried.train_args.learning_rate, tried.train_args.epochs) == (0.02, 2)
    assert "FedNNNN, digits (dirichlet), 12 clients" in next(described(load, plan))
    unset = {"max_grad_norm": 0.5, "max_client_norm": 2.0}  # in the recipe
    (step,) = make_plan(load([]), Options(grid={key: (x,) for key, x in unset.items()})).steps
    tried = trial_recipes(load, plan, step, unset)[""]
    assert unset.items() <= tried.train_args.model_dump().items()
    for grids in (None, {"comm_round": (1.0,)}, {"lr": (0.1,)}):
        with pytest.raises(UserError, match="--grid"):
            make_plan(load([]), Options(grid=grids))


@pytest.mark.parametrize(
    ("own", "validation", "held_out"),
    [
        ((), None, 1 / 6),
        (("partition_method=dirichlet", "validation_fraction=0.25"), None, 0.25),
        (("validation_fraction=0.25",), 0.5, 0.5),
    ],
)
@pytest.mark.parametrize("paper", [None, False, True])
def test_plan_is_resumed_with_the_options_that_made_it(
    own: tuple[str, ...], validation: float | None, held_out: float, paper: bool | None
) -> None:
    base = recipe("digits_noniid_b_fednnnn", *own)
    given = Options(grid={"beta": (0.5, 0.7)}, rounds=3, paper=paper, prune=False, seeds=(1, 5))
    given = given._replace(metric="final_loss", validation=validation)
    plan = make_plan(base, given)
    assert plan.validation == held_out
    assert {**given.planned, "validation": held_out}.items() <= options_of(plan).planned.items()
    assert make_plan(base, options_of(plan)) == plan
