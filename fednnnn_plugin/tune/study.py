"""The study folder: what is searched, and what was found so far.

``base.yaml`` is the recipe, ``study.yaml`` the plan, ``journal.log`` Optuna's storage,
``trials/<step>/<values>/`` a run folder each, ``trials.csv``, ``best.yaml`` and ``figures/`` the
outcome.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fednnnn_plugin.engine.folder import write_atomically
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.recipe import Recipe, differences, dump_recipe, load_recipe
from fednnnn_plugin.recipe.reading import NotReadableError, read_file, read_yaml
from fednnnn_plugin.tune.plan import Metric, Plan, Step


class _StoredStep(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    name: str = Field(pattern=r"^[A-Za-z0-9-]{1,40}$")  # a folder's name
    method: str
    rounds: int = Field(ge=1)
    grid: dict[str, list[float]] = Field(min_length=1)


class _StoredStudy(BaseModel):
    """``study.yaml``."""

    model_config = ConfigDict(extra="forbid", strict=True)
    recipe: str
    metric: Metric
    validation: float = Field(gt=0, lt=1)
    prune: bool
    steps: list[_StoredStep] = Field(min_length=1)


class StudyFolder:
    """Paths of a study's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.base = path / "base.yaml"
        self.plan = path / "study.yaml"
        self.journal = path / "journal.log"
        self.trials = path / "trials"
        self.table = path / "trials.csv"
        self.best = path / "best.yaml"
        self._lock = path / ".lock"

    def locked(self) -> FileLock:
        """Return the kernel's lock on the files that several processes write."""
        return FileLock(self._lock)

    def begin(self, recipe: Recipe, plan: Plan) -> None:
        """Write down what is searched.

        Raises:
            UserError: the folder holds a study, or cannot be written to.
        """
        try:
            if self.plan.exists() or (self.path.exists() and not self.path.is_dir()):
                raise UserError(
                    f"--study: {self.path}: it already holds a study; go on with --resume, or "
                    "choose another folder"
                )
            if self.path.exists() and any(self.path.iterdir()):
                raise UserError(f"--study: {self.path}: not empty, and not a study")
            self.trials.mkdir(parents=True)
            write_atomically(self.base, dump_recipe(recipe).encode())
            stored = {"recipe": recipe.name, **asdict(plan)}
            stored["steps"] = [_plain(step) for step in plan.steps]
            write_atomically(self.plan, yaml.safe_dump(stored, sort_keys=False).encode())
        except OSError as error:
            raise UserError(
                f"--study: {self.path}: cannot be written to: {error.strerror}"
            ) from None

    def read(self) -> tuple[str, Plan]:
        """Return the recipe's name and the plan.

        Raises:
            UserError: the file is missing or damaged.
        """
        try:
            stored = _StoredStudy.model_validate(read_yaml(read_file(self.plan)))
        except NotReadableError as error:
            raise UserError(f"--study: {self.plan}: {error}") from None
        except ValidationError as error:
            place = ".".join(str(part) for part in error.errors()[0]["loc"])
            raise UserError(f"--study: {self.plan}: {place}: damaged: not a study's") from None
        steps = tuple(
            Step(
                step.name,
                step.method,
                step.rounds,
                {key: tuple(values) for key, values in step.grid.items()},
            )
            for step in stored.steps
        )
        return stored.recipe, Plan(steps, stored.validation, stored.metric, stored.prune)

    def check(self, recipe: Recipe) -> None:
        """Refuse to go on with another recipe than the study's.

        Raises:
            UserError: a line for each key that differs.
        """
        changed = differences(load_recipe(self.base), recipe)
        if changed:
            raise UserError(
                "\n".join(
                    f"--resume: {key}: {given}: the study in {self.path} is of a recipe that has "
                    f"{before}"
                    for key, (before, given) in changed.items()
                )
            )


def _plain(step: Step) -> dict[str, Any]:
    return {**asdict(step), "grid": {key: list(values) for key, values in step.grid.items()}}
