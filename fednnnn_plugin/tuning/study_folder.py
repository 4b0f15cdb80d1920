"""The study folder: what is searched, and what was found so far.

``base.yaml`` is the recipe, ``study.yaml`` the plan, ``trials/<step>/<values>/`` a run folder each,
or one for each of the plan's seeds, ``.../seed<n>/``; ``journal.log`` is Optuna's storage,
``trials.csv``, ``best.yaml`` and ``figures/`` are the outcome.
"""

import os
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd
from filelock import FileLock
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from fednnnn_plugin.assembly.from_recipe import located
from fednnnn_plugin.assembly.objects import object_names
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.files import TEMPORARY, write_atomically
from fednnnn_plugin.reading import write_yaml
from fednnnn_plugin.recipe import Recipe, dump_recipe, load_recipe, overridden_keys
from fednnnn_plugin.reporting.conditions import value_text
from fednnnn_plugin.reporting.study import (
    COLUMNS,
    PLAN,
    TRIALS,
    Plan,
    Step,
    Study,
    is_study,
    read_study,
)
from fednnnn_plugin.run_folder.provenance import versions
from fednnnn_plugin.tuning.options import STUDY
from fednnnn_plugin.tuning.plan import recipe_values

_LONGEST_NAME = 255 - len("..lock")  # bytes of a trial's folder, whose lock is ".NAME.lock"


class _Journal(JournalFileBackend):
    """Optuna's journal under a kernel's lock: Optuna's stays where a process was killed."""

    def __init__(self, path: Path) -> None:
        lock: Any = FileLock(path.with_name(f".{path.stem}.lock"))
        self._path, self._writing = path, lock
        super().__init__(str(path), lock)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Write lines; before them drop the half of one that a killed process has left."""
        with self._writing:
            with self._path.open("rb+") as file:
                file.seek(max(file.seek(0, os.SEEK_END) - 1, 0))
                if file.read(1) not in (b"", b"\n"):
                    file.seek(0)
                    file.truncate(file.read().rfind(b"\n") + 1)
            super().append_logs(logs)


class StudyFolder:
    """A study's files; ``allow_code`` lets the recipe's own code run.

    ``objects`` of a program are in the place of what the recipe names, by ``section.key``. A
    recipe's relative paths are in ``here``, by default the working directory, which user code may
    change.
    """

    def __init__(
        self,
        path: Path,
        *,
        here: Path | None = None,
        allow_code: bool = False,
        objects: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        self.path, self.here = path, here or Path.cwd()
        self.allow_code = allow_code
        self.objects = objects
        self.object_names = {key: object_names(key, thing) for key, thing in objects.items()}
        self.base = path / "base.yaml"
        self.journal = path / "journal.log"
        self.best = path / "best.yaml"

    def load(self, overrides: Sequence[str]) -> Recipe:
        """Load the recipe that is searched for."""
        names = without(self.object_names, overrides)
        return load_recipe(self.base, overrides, allow_code=self.allow_code, objects=names)

    def located(self, recipe: Recipe) -> Recipe:
        """Return a recipe with its paths where the search was started."""
        return located(recipe, self.here)

    @property
    def storage(self) -> JournalStorage:
        """Optuna's journal, which any number of processes share."""
        try:
            return JournalStorage(_Journal(self.journal))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise UserError(
                STUDY, f"{self.journal}: damaged: not a journal of Optuna's", "move the study away"
            ) from error

    def locked(self) -> FileLock:
        """Return the kernel's lock on the files that several processes write."""
        return FileLock(self.path / ".lock")

    def trial(self, step: Step, point: Mapping[str, float]) -> Path:
        """Return a trial's folder, named as in ``beta=0.7,gamma=0.8``.

        A name that is too long for a file system ends in a digest of its own.
        """
        name = ",".join(f"{key}={value!r}" for key, value in point.items())
        if len(encoded := name.encode()) > _LONGEST_NAME:
            digest = "," + sha256(encoded).hexdigest()[:16]
            name = encoded[: _LONGEST_NAME - len(digest)].decode(errors="ignore") + digest
        return self.path / "trials" / step.name / name

    def has_others_files(self) -> bool:
        """Tell whether a folder without a study has more than a beginning of one, with its lock."""
        beginning = {".lock", self.base.name}
        beginning |= {f".{name}{TEMPORARY}" for name in (self.base.name, PLAN)}
        there = {path.name for path in self.path.iterdir()}
        return bool(there) and not (".lock" in there and there <= beginning)

    def write_plan(self, recipe: Recipe, plan: Plan) -> None:
        """Write down what is searched, unless another process has begun a study meanwhile."""
        self.path.mkdir(parents=True, exist_ok=True)
        with self.locked():
            if not is_study(self.path):
                write_atomically(self.base, dump_recipe(recipe).encode())
                text = write_yaml(plan.model_dump(mode="json"))
                write_atomically(self.path / PLAN, text.encode())

    def write_trials(self, plan: Plan, rows: Sequence[Mapping[str, object]]) -> Study:
        """Write ``trials.csv``, a line for each trial that ended; return what it says."""
        table = pd.DataFrame(rows, columns=[*COLUMNS, *plan.keys, "reason"], dtype=object)
        text = table.sort_values(plan.keys).to_csv(index=False, lineterminator="\n")
        write_atomically(self.path / TRIALS, text.encode())
        return read_study(self.path)

    def write_best(self, study: Study) -> None:
        """Write ``best.yaml``: the recipe with the chosen values, and where they come from.

        It runs as the recipe did: on all training samples and tested on the test samples, unless
        the recipe itself holds some out.
        """
        plan, values = study.plan, recipe_values(self.load([]), study.choice)
        recipe = self.load([f"{key}={value!r}" for key, value in values.items()])
        lines = [
            f"Recipe {plan.recipe} with the values that fednnnn tune chose.",
            f"Judged by {plan.metric} on {plan.judged_on}; no test sample was seen.",
            *[f"Mean over the seeds {', '.join(map(str, plan.seeds))}."] * bool(plan.seeds),
            f"Early stopping of hopeless trials: {'on' if plan.prune else 'off'}.",
            *(line for step in plan.steps for line in _provenance(study, step)),
            ", ".join(f"{package} {number}" for package, number in versions().items()),
        ]
        comments = "".join(f"# {line}\n" for line in lines)
        write_atomically(self.best, (comments + dump_recipe(recipe)).encode())


def without(
    names: Mapping[str, str | list[str]], overrides: Sequence[str]
) -> dict[str, str | list[str]]:
    """Return the names of objects that a step's overrides leave in their places."""
    replaced = overridden_keys(overrides)
    return {key: name for key, name in names.items() if key not in replaced}


def shown_values(point: Mapping[str, float]) -> str:
    """Say a point's values, as in ``beta 0.7, gamma 0.8``."""
    return ", ".join(f"{key} {value_text(value)}" for key, value in point.items())


def _provenance(study: Study, step: Step) -> list[str]:
    """What was searched in a step, how many points have a result, and which is best."""
    grids = {key: ", ".join(map(value_text, values)) for key, values in step.grid.items()}
    grid = "; ".join(f"{key} in {values}" for key, values in grids.items())
    best = study.best(step)
    assert best is not None
    equal = study.equally_good(step)
    among = f", the first of {equal} that are equally good" if equal > 1 else ""
    return [
        f"{step.name}: {step.method}, {step.rounds} rounds: {grid}",
        f"  {study.counts([step])}",
        f"  best: {shown_values(study.chosen(step))}: {study.plan.metric} {best['value']:.4f}"
        f"{among}",
    ]
