"""What a search does: its steps, and the recipes of their trials."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from pydantic import ValidationError

from fednnnn_plugin.data.natural import NATURAL
from fednnnn_plugin.errors import UserError, printable
from fednnnn_plugin.recipe import Recipe
from fednnnn_plugin.recipe.method_keys import CLIENT_METHOD, RULE
from fednnnn_plugin.recipe.schema import TrainArgs
from fednnnn_plugin.reporting.metrics import Metric
from fednnnn_plugin.reporting.study import Grid, Plan, Step
from fednnnn_plugin.tuning.options import (
    GRID,
    LEARNING_RATE_STEP,
    METRIC,
    PAPER,
    Options,
    parse_grid,
)
from fednnnn_plugin.user_code import is_own

Load = Callable[[Sequence[str]], Recipe]
"""Loads the recipe that is searched for, with these overrides."""


class Measure(NamedTuple):
    """The first metric of a recipe."""

    name: str
    lower_is_better: bool


LEARNING_RATE = "learning_rate"
_CHOSEN = (LEARNING_RATE, "weight_decay")
_NOT_SEARCHED = {
    *("comm_round", "start_round", "checkpoint_every", "max_client_failures"),
    *("client_batching", "client_threads"),
}
FEDAVG = "PaperFedAvg"
#: What the step of the learning rate has instead of the recipe's rule and client method.
OF_FEDAVG = {CLIENT_METHOD: "null", RULE: FEDAVG}
DEFAULT_VALIDATION = 1 / 6  # of MNIST's 60,000 training images 10,000, as many as are tested on

_PAPER = {"mnist": ("0.02:0.15:0.01", 50)}
_OTHERS = ("0.01:0.11:0.02", 30)  # the paper's for CIFAR-10
# The paper's non-IID-B, on which η is chosen for all methods and conditions.
_NON_IID_B = {
    "partition_method": "n_class",
    "partition_sizes": "balanced",
    "partition_alpha": 0.5,
    "power_law_exponent": 1.0,
    "min_samples": 10,
    "partition_by": "null",
    "test_division": "null",
}


def make_plan(recipe: Recipe, options: Options, measure: Measure | None = None) -> Plan:
    """Lay out a recipe's search: the paper's procedure, or the recipe as it is.

    The procedure (paper, appendix) is for recipes of the paper's data, network and partition, or
    as ``options.paper`` says. Step 1 holds out a validation part. Step 2 searches η, and λ
    where a grid names it, under non-IID-B on FedAvg, as the paper names no method. Step 3 searches
    the method's own keys at that η, in all combinations.
    Without grids they are the paper's for η, and those that the method's rule gives with its keys.
    With grids only what they name is searched. Step 3, of which the paper does not say it, takes
    the rounds of Step 2; its "epochs" of Step 2 are read as rounds, and its test accuracy as that
    of the images held out.

    Of any other recipe one step searches what the grids name, jointly: any number of
    ``train_args``, on the recipe's own data, partition and method, for its own rounds. Trials of a
    recipe that names metrics are judged by the first, the ``measure``; of one whose loss is not of
    classes, by the loss.
    """
    paper = _is_papers(recipe) if options.paper is None else options.paper
    steps = _papers_steps(recipe, options) if paper else [_joint_step(recipe, options)]
    if options.metric in ("best_metric", "final_metric") and not measure:
        raise UserError(f"{METRIC} {options.metric}", "the recipe names no validation_args.metrics")
    if options.metric == "worst_10" and not recipe.validation_args.per_client:
        raise UserError(f"{METRIC} worst_10", "the recipe has no validation_args.per_client: true")
    of_classes = recipe.train_args.loss not in ("mse", "bce_with_logits")
    usual: Metric = "best_accuracy" if of_classes else "final_loss"
    held_out = options.validation or recipe.data_args.validation_fraction or DEFAULT_VALIDATION
    return Plan(
        recipe=printable(recipe.name),
        metric=options.metric or ("best_metric" if measure else usual),
        measure=measure.name if measure else None,
        lower_is_better=bool(measure and measure.lower_is_better),
        validation=held_out,
        prune=bool(options.prune),
        paper=paper,
        seeds=options.seeds or (),
        steps=tuple(steps),
    )


def described(load: Load, plan: Plan) -> Iterator[str]:
    """Say what each step trains, on which partition."""
    for step in plan.steps:
        point = next(step.points())
        recipe = next(iter(trial_recipes(load, plan, step, point).values()))
        data, train = recipe.data_args, recipe.train_args
        partition = data.partition_method
        if partition == "n_class":
            partition += f", {data.classes_per_client} classes a client"
        why = ", the paper's procedure" * (step.name == LEARNING_RATE_STEP)
        seeds = f", each with the seeds {', '.join(map(str, plan.seeds))}" * bool(plan.seeds)
        yield (
            f"{step.name}: {', '.join(step.grid)}: {len(step)} trials of {step.rounds} rounds of "
            f"{step.method}, {data.dataset} ({partition}), {train.client_num_in_total} clients"
            f"{seeds}{why}"
        )


def _is_papers(recipe: Recipe) -> bool:
    """Whether the procedure is made for a recipe's data, network and partition."""
    data = recipe.data_args
    own_network = recipe.model_args.model == f"nnnn_{data.dataset}"
    return own_network and data.partition_method in ("iid", "n_class")


def _papers_steps(recipe: Recipe, options: Options) -> list[Step]:
    """Steps 2 and 3 of the procedure, or what the grids name of them."""
    method, keys = recipe.train_args.federated_optimizer, recipe.method_keys
    if recipe.train_args.client_num_in_total == 1:
        raise UserError(
            "train_args.client_num_in_total",
            "1: a search needs more clients: the learning rate is chosen on clients of two "
            "classes each, the other keys on how far clients agree",
        )
    if is_own(recipe.data_args.dataset) and recipe.data_args.partition_method == NATURAL:
        raise divided_already()
    rates, rounds = _PAPER.get(recipe.data_args.dataset, _OTHERS)
    grid = options.grid or {
        LEARNING_RATE: parse_grid(rates),
        **{name: key.grid for name, key in keys.items() if key.grid},
    }
    _check_keys(grid, [*_CHOSEN, *keys])
    own = {
        LEARNING_RATE_STEP: (FEDAVG, {key: grid[key] for key in _CHOSEN if key in grid}),
        _step_name(method): (method, {key: grid[key] for key in keys if key in grid}),
    }
    return [
        _step(name, optimizer, options.rounds or rounds, values)
        for name, (optimizer, values) in own.items()
        if values
    ]


def divided_already() -> UserError:
    """The error of the paper's procedure on data whose clients are given."""
    return UserError(
        "tune",
        PAPER,
        "it chooses the learning rate on clients of two classes each, and your data come divided; "
        f"without it {GRID} names what to search",
    )


def _joint_step(recipe: Recipe, options: Options) -> Step:
    """The one step of a recipe that is searched as it is."""
    train = recipe.train_args
    if not options.grid:
        raise UserError(
            "tune",
            GRID,
            f"name what to search, as in {GRID} learning_rate=0.02,0.05; the paper's procedure, "
            f"for a recipe that is not the paper's, is {PAPER}",
        )
    searchable = dict.fromkeys([*_CHOSEN, *recipe.method_keys, *_numbers()])
    _check_keys(options.grid, [key for key in searchable if key not in _NOT_SEARCHED])
    method, rounds = train.federated_optimizer, options.rounds or train.comm_round
    return _step(_step_name(method), method, rounds, options.grid)


def _numbers() -> Iterator[str]:
    """Yield the keys of ``train_args`` that take numbers."""
    for name, of in TrainArgs.model_json_schema()["properties"].items():
        if {"integer", "number"} & {each.get("type") for each in (of, *of.get("anyOf", ()))}:
            yield name


def _check_keys(grid: Grid, known: Sequence[str]) -> None:
    for name in grid:
        if name not in known:
            raise UserError(
                f"{GRID} {name}",
                f"no key of train_args to search here; there are {', '.join(known)}",
            )


def _step_name(method: str) -> str:
    return re.sub(r"[^\w.-]", ".", method).lstrip(".-")[:100]


def _step(name: str, method: str, rounds: int, grid: Grid) -> Step:
    try:
        return Step(name=name, method=method, rounds=rounds, grid=grid)
    except ValidationError as error:
        why = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise UserError(GRID, why) from None


def recipe_values(base: Recipe, point: Mapping[str, float]) -> dict[str, float]:
    """Return the values of a point by ``section.key``, a count of the recipe's as an integer."""
    counts = {key for key in point if type(getattr(base.train_args, key, None)) is int}
    return {
        f"train_args.{key}": int(value) if key in counts and value.is_integer() else value
        for key, value in point.items()
    }


def trial_recipes(
    load: Load, plan: Plan, step: Step, point: Mapping[str, float]
) -> dict[str, Recipe]:
    """Return the recipes of a trial's runs, by the names of their folders in the trial's.

    ``point`` holds the trial's values, and those that earlier steps chose.
    """
    base = load([])
    changes: dict[str, object] = {
        "train_args.comm_round": step.rounds,
        "data_args.validation_fraction": plan.validation,
    }
    if step.name == LEARNING_RATE_STEP:
        changes |= {f"train_args.{key}": "null" for key in base.method_keys}
        changes |= OF_FEDAVG
        changes |= {f"data_args.{key}": value for key, value in _NON_IID_B.items()}
        changes["data_args.classes_per_client"] = plan.classes_per_client
    schedule = base.train_args.learning_rate_schedule
    if isinstance(schedule, dict) and schedule.get("name") == "cosine":
        whole = base.train_args.comm_round - schedule.get("warmup_rounds", 0)
        if schedule["rounds"] == max(whole, 1):  # all rounds of the run, so all of the trial
            rest = {key: value for key, value in schedule.items() if key != "rounds"}
            changes["train_args.learning_rate_schedule"] = json.dumps(rest)
    changes |= recipe_values(base, point)
    more = [f"{key}={value}" for key, value in changes.items()]
    return {
        name: load(more if seed is None else [*more, f"common_args.random_seed={seed}"])
        for name, seed in plan.run_folders.items()
    }
