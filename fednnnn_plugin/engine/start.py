"""Running a recipe, from Python and from the command alike."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fednnnn_plugin.engine.folder import RunFolder
from fednnnn_plugin.engine.progress import Follower, progress_display
from fednnnn_plugin.engine.ranks import choose_ranks, ending_together
from fednnnn_plugin.engine.records import Summary
from fednnnn_plugin.engine.run import run_recipe
from fednnnn_plugin.engine.settings import default_folder, recipe_followers, run_mode
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.recipe import find_recipe, load_recipe


@dataclass(frozen=True)
class Run:
    """A run that has ended.

    Attributes:
        folder: its files.
        summary: what ``summary.json`` says; None on MPI's ranks but the first.
        was_finished: it had been finished before: nothing was done.
    """

    folder: Path
    summary: Summary | None
    was_finished: bool = False


def run(
    recipe: Path | str,
    *,
    overrides: Mapping[str, object] | Sequence[str] | None = None,
    output: Path | str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    allow_code: bool = False,
    backend: str | None = None,
    followers: Sequence[Follower] = (),
    mlops: Callable[[], Follower] | None = None,
) -> Run:
    """Run a recipe, as the command ``fednnnn run`` does, and show how far it is.

    Args:
        recipe: a path, or the name of a recipe that comes with the package.
        overrides: ``{"train_args.comm_round": 3}``, or ``["train_args.comm_round=3"]`` as the
            command takes them.
        output: the run folder; ``runs/<recipe>-seed<seed>`` by default.
        resume: go on from the newest checkpoint of the run that the folder holds.
        overwrite: replace the run that the folder holds.
        allow_code: let a ``module:name`` in the recipe run.
        backend: ``"sp"`` or ``"MPI"``; by default the recipe's, and MPI under ``mpirun``.
        followers: are told of the run as it goes.
        mlops: makes the one that reports to FedML's service, for ``using_mlops: true``.

    Raises:
        UserError: a mistake in the recipe, the data or the folder; nothing is written.
        RunError: the run cannot go on; its last finished round is saved.

    Example::

        import fednnnn_plugin as fp

        run = fp.run("digits_noniid_b_fednnnn", overrides={"train_args.comm_round": 10})
        fp.read_runs(run.folder).plot(x="round", y="test_acc")
    """
    path = find_recipe(str(recipe))
    loaded = load_recipe(path, _as_options(overrides or ()), allow_code=allow_code)
    mode = run_mode(loaded, resume=resume, overwrite=overwrite)
    folder = default_folder(loaded) if output is None else _folder(Path(output))
    asked_for = "MPI" if loaded.comm_args.backend == "MPI" else None  # sp is every recipe's default
    ranks = choose_ranks(backend or asked_for)
    with ending_together(ranks), progress_display(loaded.train_args.comm_round) as display:
        tracking = recipe_followers(loaded, mlops) if ranks.rank == 0 else []
        summary = run_recipe(
            loaded,
            folder,
            mode,
            ranks=ranks,
            followers=[display, *tracking, *followers],
            allow_code=allow_code,
        )
    if ranks.rank:
        return Run(folder, None)
    return Run(folder, summary or Summary.read(RunFolder(folder).summary), summary is None)


def _folder(output: Path) -> Path:
    try:
        return output.expanduser()
    except RuntimeError:
        raise UserError(f"--output: {output}: there is no such home directory") from None


def _as_options(overrides: Mapping[str, object] | Sequence[str]) -> list[str]:
    if isinstance(overrides, Mapping):  # JSON is YAML
        as_json = partial(json.dumps, ensure_ascii=False, default=_plain)
        return [f"{key}={as_json(value)}" for key, value in overrides.items()]
    return [overrides] if isinstance(overrides, str) else list(overrides)


def _plain(value: object) -> object:
    """Return what JSON has of a path, or of numbers of NumPy's or torch's."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
