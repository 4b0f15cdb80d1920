"""``fp.report`` and ``fp.tune``: their arguments; what they do: ``test_own_rule.py``."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import fednnnn_plugin as fp
from fednnnn_plugin.report.page import report
from fednnnn_plugin.tune.tuning import tune

from .report.conftest import bare, maker

RECIPE = "digits_noniid_b_fednnnn"


@pytest.mark.parametrize(("package", "function"), [(fp.report, report), (fp.tune, tune)])
def test_help_is_of_the_function(package: Any, function: Any) -> None:
    assert inspect.signature(package) == inspect.signature(function)
    assert inspect.getdoc(function) in str(inspect.getdoc(package))


@pytest.mark.parametrize(
    ("call", "given", "named"),
    [
        (fp.tune, {"jobs": 0}, "jobs: 0"),
        (fp.tune, {"jobs": "2"}, "jobs: '2'"),
        (fp.tune, {"rounds": 0}, "rounds: 0"),
        (fp.tune, {"grid": {"eta": "1"}}, "grid eta"),
        (fp.report, {"formats": ["gif"]}, "formats: 'gif'"),
        (fp.report, {"formats": 3}, "formats: 3"),
        (fp.report, {"layers": [3]}, "layers: "),
        (fp.report, {"target": "0.9"}, "target: '0.9'"),
        (fp.report, {"target": float("nan")}, "target: nan"),
        (fp.report, {"out": 3}, "out: 3"),
        (fp.report, {}, "digits_noniid_b_fednnnn: no run"),
    ],
)
def test_mistake_names_its_argument(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: Callable[..., object],
    given: dict[str, Any],
    named: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(fp.UserError, match=f"^{named}"):
        call(RECIPE, **given)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("wrong", [3, [None], pd.DataFrame({"run": [1]})])
@pytest.mark.parametrize("call", [fp.read_runs, fp.report])
def test_runs_that_are_no_path_are_refused(call: Callable[..., object], wrong: Any) -> None:
    with pytest.raises(fp.UserError, match=r"^runs: .*: must be a path$"):
        call(wrong)


def test_report_takes_a_string_for_one_item_and_patterns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("n-1", "n-2"):
        maker(tmp_path / "runs")("FedNNNN", name=name, seed=int(name[-1]), change=bare)
    out = tmp_path / "out"
    pattern = tmp_path / "runs" / "n-*"
    fp.report([str(pattern), tmp_path / "runs" / "n-1"], out=out, formats="png", layers="fc9")
    assert pd.read_csv(out / "rounds.csv")["run"].unique().tolist() == ["n-1", "n-2"]
    assert {path.suffix for path in out.glob("figures/*/*")} == {".svg", ".png"}
    assert [record.message.split(": ")[:2] for record in caplog.records] == [["layers", "fc9"]]
