"""What a search does: its steps, and the recipes of their trials."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.recipe import Recipe, load_recipe
from fednnnn_plugin.recipe.consistency import COEFFICIENTS
from fednnnn_plugin.report.study import MAX_POINTS, Plan, Step
from fednnnn_plugin.tune.grid import parse_grid
from fednnnn_plugin.tune.settings import Settings

LEARNING_RATE = "learning_rate"
FEDAVG = "PaperFedAvg"
DEFAULT_VALIDATION = 1 / 6  # of MNIST's 60,000 training images 10,000, as many as are tested on

_PAPER_RATES = {"mnist": "0.02:0.15:0.01"}
_OTHER_RATES = "0.01:0.11:0.02"  # the paper's for CIFAR-10
_PAPER_ROUNDS = {"mnist": 50}
_OTHER_ROUNDS = 30
_COEFFICIENT_GRIDS = {
    "prox_mu": "0.005:0.02:0.005",
    "beta": "0.5:1.2:0.1",
    "gamma": "0.5:0.9:0.1",
    "server_lr": "0.001,0.003,0.01,0.03,0.1,0.3,1",
}
# The paper's non-IID-B, on which η is chosen for all methods and conditions.
_NON_IID_B = {
    "partition_method": "n_class",
    "partition_sizes": "balanced",
    "classes_per_client": 2,
    "power_law_exponent": 1.0,
}


def make_plan(recipe: Recipe, settings: Settings) -> Plan:
    """Lay out a recipe's search (paper, appendix).

    Step 1 holds out a validation part. Step 2 searches η, on FedAvg under non-IID-B, and Step 3
    the method's own keys, at that η. Without grids they are the paper's for η (MNIST 0.02 to 0.15
    by 0.01 over 50 rounds; CIFAR-10, and other data too, 0.01 to 0.11 by 0.02 over 30), and for
    μ, β and γ, whose ranges the paper does not say, ranges that hold all its choices. With grids
    only what they name is searched. All steps take the rounds of Step 2.

    Raises:
        UserError: a single client, a key that the method does not have, or too many combinations.
    """
    method, dataset = recipe.train_args.federated_optimizer, recipe.data_args.dataset
    keys = COEFFICIENTS[method]
    if recipe.train_args.client_num_in_total == 1:
        raise UserError(
            "train_args.client_num_in_total: 1: a search needs more clients: the learning rate is "
            "chosen on clients of two classes each, the other keys on how far clients agree"
        )
    grids = settings.grids or {
        LEARNING_RATE: parse_grid(_PAPER_RATES.get(dataset, _OTHER_RATES)),
        **{key: parse_grid(grid) for key, grid in _COEFFICIENT_GRIDS.items() if key in keys},
    }
    for key in grids:
        if key not in (LEARNING_RATE, *keys):
            known = ", ".join((LEARNING_RATE, *keys))
            raise UserError(f"--grid {key}: {method} has no such key to search; it has {known}")
    steps = {
        "learning-rate": (FEDAVG, [LEARNING_RATE]),
        re.sub(r"[^\w.-]", ".", method)[:100]: (method, keys),
    }
    rounds = settings.rounds or _PAPER_ROUNDS.get(dataset, _OTHER_ROUNDS)
    found = []
    for name, (searched, own) in steps.items():
        grid = {key: grids[key] for key in own if key in grids}
        if (points := prod(map(len, grid.values()))) > MAX_POINTS:
            raise UserError(f"--grid: {points} combinations; at most {MAX_POINTS} are allowed")
        if grid:
            found.append(Step(name=name, method=searched, rounds=rounds, grid=grid))
    return Plan(
        recipe=recipe.name,
        metric=settings.metric or "best_accuracy",
        validation=settings.validation or DEFAULT_VALIDATION,
        prune=bool(settings.prune),
        steps=tuple(found),
    )


def trial_recipe(
    path: Path, plan: Plan, step: Step, point: Mapping[str, float], given: Sequence[str] = ()
) -> Recipe:
    """Return the recipe of one trial.

    Args:
        path: the recipe's file.
        plan, step: of which the trial is.
        point: its values, and those that earlier steps chose.
        given: overrides of the file's keys.

    Raises:
        UserError: a value that the recipe's key does not take.
    """
    changes: dict[str, object] = {
        "train_args.comm_round": step.rounds,
        "data_args.validation_fraction": plan.validation,
    }
    if LEARNING_RATE in step.grid:
        changes["train_args.federated_optimizer"] = FEDAVG
        for keys in COEFFICIENTS.values():
            changes |= {f"train_args.{key}": "null" for key in keys}
        changes |= {f"data_args.{key}": value for key, value in _NON_IID_B.items()}
    changes |= {f"train_args.{key}": value for key, value in point.items()}
    return load_recipe(path, [*given, *(f"{key}={value}" for key, value in changes.items())])
