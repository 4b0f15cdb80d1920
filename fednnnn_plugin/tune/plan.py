"""What a search does: its steps, and the recipes of their trials."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import prod

from fednnnn_plugin.errors import UserError, printable
from fednnnn_plugin.recipe import Recipe
from fednnnn_plugin.report.study import MAX_POINTS, TAKEN, Plan, Step
from fednnnn_plugin.tune.settings import Settings, parse_grid

Load = Callable[[Sequence[str]], Recipe]
"""Loads the recipe that is searched for, with these overrides."""

LEARNING_RATE = "learning_rate"
FEDAVG = "PaperFedAvg"
DEFAULT_VALIDATION = 1 / 6  # of MNIST's 60,000 training images 10,000, as many as are tested on

_PAPER = {"mnist": ("0.02:0.15:0.01", 50)}
_OTHERS = ("0.01:0.11:0.02", 30)  # the paper's for CIFAR-10
# The paper's non-IID-B, on which η is chosen for all methods and conditions.
_NON_IID_B = {
    "partition_method": "n_class",
    "partition_sizes": "balanced",
    "classes_per_client": 2,
    "partition_alpha": 0.5,
    "power_law_exponent": 1.0,
    "min_samples": 10,
}


def make_plan(recipe: Recipe, settings: Settings) -> Plan:
    """Lay out a recipe's search (paper, appendix).

    Step 1 holds out a validation part. Step 2 searches η, on FedAvg under non-IID-B, and Step 3
    the method's own keys, at that η. Without grids they are the paper's for η, and those that the
    method's rule gives with its keys. With grids only what they name is searched. Step 3, of which
    the paper does not say it, takes the rounds of Step 2.
    """
    method, keys = recipe.train_args.federated_optimizer, recipe.rule.keys
    rates, rounds = _PAPER.get(recipe.data_args.dataset, _OTHERS)
    if recipe.train_args.client_num_in_total == 1:
        raise UserError(
            "train_args.client_num_in_total: 1: a search needs more clients: the learning rate is "
            "chosen on clients of two classes each, the other keys on how far clients agree"
        )
    grids = settings.grids or {
        LEARNING_RATE: parse_grid(rates),
        **{name: key.grid for name, key in keys.items() if key.grid},
    }
    for name in grids:
        if name not in (LEARNING_RATE, *keys):
            known = ", ".join((LEARNING_RATE, *keys))
            raise UserError(f"--grid {name}: {method} has no such key to search; it has {known}")
        if name in TAKEN:
            raise UserError(
                f"--grid {name}: the table of trials has such a column: call it otherwise"
            )
    searched = {
        "learning-rate": (FEDAVG, [LEARNING_RATE]),
        re.sub(r"[^\w.-]", ".", method)[:100]: (method, keys),
    }
    steps = []
    for name, (optimizer, own) in searched.items():
        grid = {key: grids[key] for key in own if key in grids}
        if (points := prod(map(len, grid.values()))) > MAX_POINTS:
            raise UserError(f"--grid: {points} combinations; at most {MAX_POINTS} are allowed")
        if grid:
            steps.append(
                Step(name=name, method=optimizer, rounds=settings.rounds or rounds, grid=grid)
            )
    return Plan(
        recipe=printable(recipe.name),
        metric=settings.metric or "best_accuracy",
        validation=settings.validation
        or recipe.data_args.validation_fraction
        or DEFAULT_VALIDATION,
        prune=bool(settings.prune),
        steps=tuple(steps),
    )


def trial_recipe(load: Load, plan: Plan, step: Step, point: Mapping[str, float]) -> Recipe:
    """Return a trial's recipe; ``point`` holds its values, and those that earlier steps chose."""
    changes: dict[str, object] = {
        "train_args.comm_round": step.rounds,
        "data_args.validation_fraction": plan.validation,
    }
    if LEARNING_RATE in step.grid:
        changes |= {f"train_args.{key}": "null" for key in load([]).rule.keys}
        changes["train_args.federated_optimizer"] = FEDAVG
        changes |= {f"data_args.{key}": value for key, value in _NON_IID_B.items()}
    changes |= {f"train_args.{key}": value for key, value in point.items()}
    return load([f"{key}={value}" for key, value in changes.items()])
