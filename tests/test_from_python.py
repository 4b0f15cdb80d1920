"""What ``fp`` offers to a program: arguments, help, types."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from mypy import api

import fednnnn_plugin as fp
from fednnnn_plugin.report.arguments import run_paths
from fednnnn_plugin.report.page import report
from fednnnn_plugin.tune.tuning import tune

RECIPE = "digits_noniid_b_fednnnn"
RESULTS = Path(__file__).parents[1] / "results"


def test_help_is_of_the_function() -> None:
    for package, function in ((fp.report, report), (fp.tune, tune)):
        assert inspect.signature(package) == inspect.signature(function)
        assert inspect.getdoc(function) in str(inspect.getdoc(package))


@pytest.mark.parametrize(
    ("call", "argument", "given", "named"),
    [
        (fp.tune, RECIPE, {"jobs": "2"}, "jobs: '2'"),
        (fp.tune, RECIPE, {"rounds": 0}, "rounds: 0"),
        (fp.tune, RECIPE, {"grid": {"eta": "1"}}, "grid eta"),
        (fp.report, RECIPE, {"formats": ["gif"]}, "formats: 'gif'"),
        (fp.report, RECIPE, {"layers": [3]}, "layers: "),
        (fp.report, RECIPE, {"target": float("nan")}, "target: nan"),
        (fp.report, RECIPE, {"out": 3}, "out: 3"),
        (fp.report, RECIPE, {}, f"{RECIPE}: no run"),
        (fp.report, [None], {}, "runs: null: must be a path"),
        (fp.read_runs, 3, {}, "runs: 3: must be a path"),
        (fp.read_runs, pd.DataFrame({"run": [1]}), {}, "runs: a DataFrame: must be a path"),
    ],
)
def test_mistake_names_its_argument(
    own_code: Path, call: Callable[..., object], argument: Any, given: dict[str, Any], named: str
) -> None:
    with pytest.raises(fp.UserError, match=f"^{named}"):
        call(argument, **given)
    assert not any(own_code.iterdir())


def test_runs_are_paths_patterns_and_lists_of_them() -> None:
    runs = [RESULTS / f"digits_noniid_b_fednnnn-seed{seed}" for seed in (0, 1, 2)]
    given = (str(RESULTS / "digits_noniid_b_fednnnn-*"), [runs[0], Path("nowhere")])
    assert run_paths(given) == [*runs, runs[0], Path("nowhere")]


PROGRAM = """
import fednnnn_plugin as fp

best: dict[str, float] = fp.tune("x", grid={"beta": [0.5, 0.7]}).best
page = fp.report("n-*", [fp.run("x").folder], formats="png", layers=["fc1"]).name
fp.figures.partition([[1, 2]]).set_title("t")
fp.no_such_thing  # wrong
fp.run("x", overwritten=True)  # wrong
fp.report("x", output="y")  # wrong
fp.figures.norms(1, label=True)  # wrong
"""


@pytest.mark.slow
def test_mypy_finds_what_is_misspelt(own_code: Path) -> None:
    Path("program.py").write_text(PROGRAM)
    options = ["--follow-imports=skip", "--ignore-missing-imports", "--cache-dir=/dev/null"]
    names = "__init__ engine/start tune/tuning report/page report/figures report/split_figures"
    files = [f"{Path(fp.__file__).parent}/{name}.py" for name in names.split()]
    found, _, _ = api.run([*options, "program.py", *files])
    errors = {line.split(":")[1] for line in found.splitlines() if line.startswith("program.py:")}
    lines = enumerate(PROGRAM.splitlines(), start=1)
    assert errors == {str(number) for number, line in lines if "# wrong" in line}
