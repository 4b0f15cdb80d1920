"""``fp.report`` and ``fp.tune``: their arguments; what they do: ``test_own_rule.py``."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import fednnnn_plugin as fp
from fednnnn_plugin.report.arguments import run_paths
from fednnnn_plugin.report.page import report
from fednnnn_plugin.tune.tuning import tune

RECIPE = "digits_noniid_b_fednnnn"
RESULTS = Path(__file__).parents[1] / "results"


@pytest.mark.parametrize(("package", "function"), [(fp.report, report), (fp.tune, tune)])
def test_help_is_of_the_function(package: Any, function: Any) -> None:
    assert inspect.signature(package) == inspect.signature(function)
    assert inspect.getdoc(function) in str(inspect.getdoc(package))


@pytest.mark.parametrize(
    ("call", "argument", "given", "named"),
    [
        (fp.tune, RECIPE, {"jobs": "2"}, "jobs: '2'"),
        (fp.tune, RECIPE, {"grid": {"eta": "1"}}, "grid eta"),
        (fp.report, RECIPE, {"formats": ["gif"]}, "formats: 'gif'"),
        (fp.report, RECIPE, {"target": float("nan")}, "target: nan"),
        (fp.report, RECIPE, {"out": 3}, "out: 3"),
        (fp.report, RECIPE, {}, f"{RECIPE}: no run"),
        (fp.report, [None], {}, "runs: null: must be a path"),
        (fp.read_runs, 3, {}, "runs: 3: must be a path"),
        (fp.read_runs, pd.DataFrame({"run": [1]}), {}, "runs: a DataFrame: must be a path"),
    ],
)
def test_report_and_tune_name_a_wrong_argument(
    own_code: Path, call: Callable[..., object], argument: Any, given: dict[str, Any], named: str
) -> None:
    with pytest.raises(fp.UserError, match=f"^{named}"):
        call(argument, **given)
    assert not any(own_code.iterdir())


def test_runs_are_paths_patterns_and_lists_of_them() -> None:
    runs = [RESULTS / f"digits_noniid_b_fednnnn-seed{seed}" for seed in (0, 1, 2)]
    given = (str(RESULTS / "digits_noniid_b_fednnnn-*"), [runs[0], Path("nowhere")])
    assert run_paths(given) == [*runs, runs[0], Path("nowhere")]
