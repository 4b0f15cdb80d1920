"""What a search does: its steps, the recipes of its trials, what counts as best."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Literal, get_args

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.recipe import Recipe, load_recipe
from fednnnn_plugin.server.rules import RULES, find_rule
from fednnnn_plugin.tune.grid import MAX_POINTS, Grid, parse_grid

Metric = Literal["best_accuracy", "final_accuracy", "final_loss"]
METRICS: tuple[Metric, ...] = get_args(Metric)

LEARNING_RATE = "learning_rate"
FEDAVG = "PaperFedAvg"

_PAPER_RATES = {"mnist": "0.02:0.15:0.01", "cifar10": "0.01:0.11:0.02"}
_OTHER_RATES = "0.01:0.11:0.02"
_PAPER_ROUNDS = {"mnist": 50, "cifar10": 30}
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


@dataclass(frozen=True)
class Step:
    """One grid search.

    Attributes:
        name: of the step, and of its folder of trials.
        method: the federated optimizer that is searched for.
        rounds: of every trial.
        grid: the values of each key of ``train_args``; every combination is a trial.
    """

    name: str
    method: str
    rounds: int
    grid: Grid

    def points(self) -> Iterator[dict[str, float]]:
        """Yield every combination, the last key's values going round fastest."""
        for values in product(*self.grid.values()):
            yield dict(zip(self.grid, values, strict=True))

    def __len__(self) -> int:
        return prod(map(len, self.grid.values()))

    def overrides(self, point: Mapping[str, float]) -> list[str]:
        """Return what a trial changes in the recipe."""
        changes: dict[str, object] = {"train_args.comm_round": self.rounds}
        if self.method == FEDAVG and LEARNING_RATE in self.grid:
            changes["train_args.federated_optimizer"] = FEDAVG
            for rule in RULES.values():
                changes |= {f"train_args.{key}": "null" for key in rule.keys}
            changes |= {f"data_args.{key}": value for key, value in _NON_IID_B.items()}
        changes |= {f"train_args.{key}": value for key, value in point.items()}
        return [f"{key}={value}" for key, value in changes.items()]


@dataclass(frozen=True)
class Plan:
    """A whole search (paper, appendix).

    Attributes:
        steps: Step 2, the learning rate, and Step 3, the method's own coefficients; each goes on
            from the values that the one before it chose.
        validation: share of the training images held out in Step 1; every trial is judged on it.
        metric: what is best: the highest best or final accuracy, or the lowest final loss.
        prune: whether trials far behind the others are stopped early.
    """

    steps: tuple[Step, ...]
    validation: float
    metric: Metric
    prune: bool


def plan_steps(recipe: Recipe, grids: Grid, rounds: int | None) -> tuple[Step, ...]:
    """Lay out the steps of a recipe's search.

    Without grids they are the paper's for η (MNIST 0.02 to 0.15 by 0.01 over 50 rounds; CIFAR-10,
    and other data too, 0.01 to 0.11 by 0.02 over 30), and for μ, β and γ, whose ranges the paper
    does not say, ranges that hold all its choices; a server learning rate goes by half powers of
    ten, as its authors search it. With grids only what they name is searched: η
    in Step 2, on FedAvg under non-IID-B, the rest in Step 3, at the recipe's η.

    Args:
        recipe: whose method is searched for.
        grids: replace the default ones.
        rounds: of every trial; the paper's number for the data set where None. Step 3, of which
            the paper does not say it, takes the same.

    Raises:
        UserError: a key that the method does not have, or too many combinations.
    """
    method = recipe.train_args.federated_optimizer
    dataset = recipe.data_args.dataset
    coefficients = tuple(find_rule(method).keys)
    for key in grids:
        if key not in (LEARNING_RATE, *coefficients):
            known = ", ".join((LEARNING_RATE, *coefficients))
            raise UserError(f"--grid {key}: {method} has no such key to search; it has {known}")
    if not grids:
        grids = {LEARNING_RATE: parse_grid(_PAPER_RATES.get(dataset, _OTHER_RATES), LEARNING_RATE)}
        grids |= {
            key: parse_grid(_COEFFICIENT_GRIDS[key], key)
            for key in coefficients
            if key in _COEFFICIENT_GRIDS
        }
    rounds = rounds or _PAPER_ROUNDS.get(dataset, _OTHER_ROUNDS)
    steps = []
    if LEARNING_RATE in grids:
        steps.append(Step("learning-rate", FEDAVG, rounds, {LEARNING_RATE: grids[LEARNING_RATE]}))
    own = {key: grids[key] for key in coefficients if key in grids}
    if own:
        steps.append(Step(method, method, rounds, own))
    for step in steps:
        if len(step) > MAX_POINTS:
            raise UserError(f"--grid: {len(step)} combinations; at most {MAX_POINTS} are allowed")
    return tuple(steps)


def trial_recipe(base: Path, plan: Plan, step: Step, point: Mapping[str, float]) -> Recipe:
    """Return the recipe of one trial.

    Raises:
        UserError: a value that the recipe's key does not take.
    """
    overrides = [
        f"data_args.validation_fraction={plan.validation}",
        *step.overrides(point),
    ]
    return load_recipe(base, overrides)
