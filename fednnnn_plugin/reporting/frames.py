"""Runs as tables for a notebook: a line a round, a line of a figure, or a layer of a round."""

import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from fednnnn_plugin.errors import UserError, in_python
from fednnnn_plugin.quantities import NORMS
from fednnnn_plugin.reporting.arguments import parsed_target, run_paths
from fednnnn_plugin.reporting.conditions import LINE, arrange, check_runs, placed
from fednnnn_plugin.reporting.outcomes import averaged, outcomes, reaching
from fednnnn_plugin.reporting.runs import layers, read_folders


def read_runs(*folders: str | Path | Iterable[str | Path]) -> pd.DataFrame:
    """Read run folders into a tidy table with one row for each round.

    Each argument is a path, a pattern such as ``"runs/n-*"``, or an iterable of them. A path may be
    a run folder or contain run folders, up to four levels deep. Unfinished runs are read as well.
    The columns are, in this order:

    - of the run: ``run``, ``data`` and ``condition`` as in the report, ``folder``, ``finished``,
      ``stopped`` (why, of one that ended before its last round by its recipe's ``stop``),
      ``method`` (as the paper writes it; the folder's name if there is no ``recipe.yaml``),
      ``seed``, ``device`` and ``commit`` (of a finished run), ``metric`` (the recipe's first) and
      ``lower_is_better``;
    - its settings: ``settings`` has the names of the columns that follow: settings by their recipe
      key (``dataset``, ``beta``, ...), counts as ``Int64`` and switches as ``boolean``, and
      ``model_fingerprint``, ``data_fingerprint`` and so on, the digests of custom objects;
    - of the round: ``round``, and the numbers of ``metrics.jsonl``: accuracies in [0, 1], L2
      norms, seconds; ``client_norm_min``, ``client_norm_median`` and ``client_norm_max``;
      ``evaluated``, which model is tested; layers such as ``layers.fc3.mean_update_norm``. NaN
      means that nothing was recorded, or that a custom metric is beyond 1e100.

    Columns that you add are not settings: they do not change the lines of figures and tables.
    Study folders are skipped; the runs of their trials are in ``studies/<name>/trials``.

    A damaged line is left out with a warning that names its file and number, and so is what follows
    256 MiB of a file.

    Raises:
        UserError: no round was found.
    """
    runs, problems = read_folders(run_paths(folders))
    if runs.empty:
        raise UserError("\n".join([*problems, "no run with a recorded round was given"]))
    for problem in problems:
        warnings.warn(problem, stacklevel=2)
    return placed(runs)


@in_python
def summary(
    runs: pd.DataFrame,
    target: float | str | None = None,
    *,
    hue: str | Sequence[str] | None = None,
) -> pd.DataFrame:
    """Summarise runs over seeds: one row for each method with its settings under a condition.

    Args:
        runs: what :func:`read_runs` returns.
        target: an accuracy in (0, 1], or a value of the runs' first metric; or a text such as
            ``"worst_10=0.6"``, as for :func:`report`.
        hue: the column or columns whose values tell the rows of a condition apart; by default the
            method, and the settings that differ. Each run of a seed then counts as a seed.

    Returns:
        A table with the columns ``data``, ``condition``, ``label``, ``method`` (of a row with
        several, all of them) and ``seeds``; ``rounds``, of the shortest run; ``metric``, by which
        the row is judged: the first of the recipe, or else ``accuracy``, in [0, 1], or what is on
        record; its ``best`` value and its ``final`` one, of the last tested round, as means over
        the seeds that have one, with the sample standard deviations ``best_sd`` and ``final_sd``
        (NaN for one seed). With a ``target`` also ``reached``, the number of seeds that reached it,
        and ``rounds_to_target``, the median over all seeds of the first round that reached it,
        where a seed that did not is later than all that did: NaN unless more than half did. Of
        several runs with the same settings and seed the longest is used, with a warning.

    Raises:
        UserError: no table of :func:`read_runs`, an empty one, or a ``target`` out of range.
    """
    runs = arrange(runs, hue=hue)
    columns = ["method", "seeds", "rounds", "metric", "best", "best_sd", "final", "final_sd"]
    table = averaged(outcomes(runs)).set_index(LINE)[columns]
    if target is not None:
        metric, value = parsed_target(target)
        found = reaching(outcomes(runs, metric, value)).set_index(LINE)
        table["reached"], table["rounds_to_target"] = found["reached"], found["median"]
    return table.reset_index()


def layer_norms(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the norms of each layer, one row for each layer and round, tidy as for seaborn.

    Args:
        runs: what :func:`read_runs` returns.

    Returns:
        A table with ``data``, ``condition``, ``method``, ``run``, ``seed``, ``round``, ``layer``,
        and the layer's ``mean_update_norm`` (N), ``mean_client_norm`` (E) and
        ``server_update_norm``.
    """
    check_runs(runs)
    heads = runs[["data", "condition", "method", "run", "seed", "round"]]
    parts = [
        heads.assign(layer=layer, **{norm: runs.get(f"layers.{layer}.{norm}") for norm in NORMS})
        for layer in layers(runs)
    ]
    if not parts:
        return heads.iloc[:0]
    return pd.concat(parts).dropna(subset=[*NORMS], how="all").reset_index(drop=True)
