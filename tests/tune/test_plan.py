"""The paper's procedure: which values, which condition, which rounds."""

from pathlib import Path

import pytest

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.recipe import Recipe, find_recipe, load_recipe
from fednnnn_plugin.tune.plan import Plan, Step, plan_steps, trial_recipe
from fednnnn_plugin.tune.settings import (
    Settings,
    check_values,
    checked_settings,
    make_plan,
    read_settings,
    settings_of,
)


def recipe(name: str) -> Recipe:
    return load_recipe(find_recipe(name))


def test_mnist_s_learning_rates_and_rounds_are_the_paper_s() -> None:
    rate, own = plan_steps(recipe("mnist_iid_ub_fednnnn"), {}, None)
    assert (rate.method, rate.rounds, len(rate)) == ("PaperFedAvg", 50, 14)
    assert rate.grid["learning_rate"][:2] == (0.02, 0.03)
    assert rate.grid["learning_rate"][-1] == 0.15
    assert (own.method, list(own.grid)) == ("FedNNNN", ["beta", "gamma"])


def test_cifar10_s_too() -> None:
    rate, own = plan_steps(recipe("cifar10_noniid_b_fedprox"), {}, None)
    assert rate.rounds == 30
    assert rate.grid == {"learning_rate": (0.01, 0.03, 0.05, 0.07, 0.09, 0.11)}
    assert list(own.grid) == ["prox_mu"]


# Table 6 (tab:params2): what the paper chose lies in the default grids.
@pytest.mark.parametrize(
    ("method", "key", "chosen"),
    [
        ("fedprox", "prox_mu", {0.005, 0.01, 0.015, 0.02}),
        ("normnorm", "beta", {0.6, 0.7, 0.9, 1.0, 1.1}),
        ("momentum", "gamma", {0.7, 0.8, 0.9}),
        ("fednnnn", "beta", {0.6, 0.7, 0.8}),
        ("fednnnn", "gamma", {0.6, 0.7, 0.8}),
    ],
)
def test_the_paper_s_choices_are_among_the_defaults(
    method: str, key: str, chosen: set[float]
) -> None:
    _, own = plan_steps(recipe(f"mnist_noniid_b_{method}"), {}, None)
    assert chosen <= set(own.grid[key])


def test_fedavg_has_a_learning_rate_only() -> None:
    [rate] = plan_steps(recipe("digits_noniid_b_fedavg"), {}, None)
    assert rate.method == "PaperFedAvg"


def test_only_what_a_grid_names_is_searched() -> None:
    [own] = plan_steps(recipe("digits_noniid_b_fednnnn"), {"gamma": (0.5, 0.6)}, 3)
    assert (own.grid, own.rounds) == ({"gamma": (0.5, 0.6)}, 3)


def test_a_key_of_another_method_is_refused() -> None:
    with pytest.raises(UserError, match=r"^--grid gamma: NormNorm has no such key .* beta$"):
        plan_steps(recipe("digits_noniid_b_normnorm"), {"gamma": (0.5,)}, None)


def test_a_grid_of_too_many_points_is_refused() -> None:
    many = tuple(0.001 * n for n in range(1, 100))
    with pytest.raises(UserError, match="9801 combinations"):
        plan_steps(recipe("digits_noniid_b_fednnnn"), {"beta": many, "gamma": many}, None)


def test_the_learning_rate_is_searched_on_fedavg_under_non_iid_b() -> None:
    path = find_recipe("mnist_iid_ub_fednnnn")
    plan = make_plan(load_recipe(path), Settings())
    rate, own = plan.steps
    tried = trial_recipe(path, plan, rate, {"learning_rate": 0.07})
    assert tried.train_args.federated_optimizer == "PaperFedAvg"
    assert (tried.train_args.beta, tried.train_args.gamma) == (None, None)
    assert tried.data_args.partition_method == "n_class"
    assert tried.data_args.partition_sizes == "balanced"
    assert tried.data_args.validation_fraction == pytest.approx(1 / 6)
    assert (tried.train_args.learning_rate, tried.train_args.comm_round) == (0.07, 50)
    # The method's own values under the recipe's own condition.
    tried = trial_recipe(path, plan, own, {"learning_rate": 0.07, "beta": 0.9, "gamma": 0.6})
    assert tried.train_args.federated_optimizer == "FedNNNN"
    assert tried.data_args.partition_method == "iid"
    assert tried.data_args.partition_sizes == "power_law"
    assert (tried.train_args.beta, tried.train_args.gamma) == (0.9, 0.6)
    assert tried.train_args.learning_rate == 0.07


def test_every_point_once_the_last_key_fastest() -> None:
    step = Step("s", "FedNNNN", 1, {"beta": (1.0, 2.0), "gamma": (0.1, 0.2)})
    assert [tuple(point.values()) for point in step.points()] == [
        (1.0, 0.1),
        (1.0, 0.2),
        (2.0, 0.1),
        (2.0, 0.2),
    ]


def test_a_plan_s_settings_make_the_plan_again() -> None:
    base = recipe("mnist_noniid_b_fednnnn")
    plan = make_plan(base, Settings(metric="final_loss", prune=True, validation=0.25, rounds=7))
    assert make_plan(base, settings_of(plan)) == plan
    assert isinstance(plan, Plan)


def test_values_that_the_recipe_does_not_take_are_named_before_anything_runs() -> None:
    path = find_recipe("digits_noniid_b_fednnnn")
    plan = make_plan(load_recipe(path), Settings(grids={"beta": [-1.0, 0.5], "gamma": "0.5,1"}))
    with pytest.raises(UserError) as caught:
        check_values(path, [], plan)
    first, second = str(caught.value).splitlines()
    assert first.startswith("--grid beta: -1.0: must be")
    assert second.startswith("--grid gamma: 1")


def test_settings_from_a_file_and_options_before_it(tmp_path: Path) -> None:
    file = tmp_path / "search.yaml"
    file.write_text("grids: {beta: 0.5:0.7:0.1, gamma: [0.6, 0.8]}\nrounds: 5\nprune: true\n")
    settings = read_settings(file).updated(checked_settings({"grids": {"beta": "0.9"}}, "--"))
    assert settings.parsed_grids("") == {"beta": (0.9,), "gamma": (0.6, 0.8)}
    assert (settings.rounds, settings.prune, settings.metric) == (5, True, None)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("rounds: 0", "rounds: 0: must be a whole number"),
        ("validation: 1.0", "validation: 1.0: must be a number above 0 and below 1"),
        ("metric: loss", "metric: 'loss': must be one of best_accuracy"),
        ("grid: {}", "grid: unknown key; must be one of grids"),
        ("grids: {}", "grids: empty"),
        ("grids: {beta: []}", r"grids.beta: \[\]: no value"),
        ("grids: {beta: '1:2'}", "grids.beta: '1:2': must be numbers"),
        ("grids: {beta: 1:5:0.5}", r"grids: 3900.5: must be a mapping .*\(quoted\)"),
        ("grids: 3", "grids: 3: must be a mapping"),
        ("- 1", "a list: must be a mapping of grids"),
        ("", "null: must be a mapping"),
        ("prune: !!python/object/apply:os.system [true]", "line 1"),
    ],
)
def test_a_bad_settings_file_is_one_line(tmp_path: Path, text: str, line: str) -> None:
    file = tmp_path / "search.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=f"search.yaml: .*{line}") as caught:
        read_settings(file)
    assert "\n" not in str(caught.value)
