"""``fp.report`` and ``fp.tune``: their arguments; what they do: ``test_own_rule.py``."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import fednnnn_plugin as fp

from .report.conftest import bare, maker

RECIPE = "digits_noniid_b_fednnnn"


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"jobs": 0}, "jobs: 0"),
        ({"jobs": "2"}, "jobs: '2'"),
        ({"rounds": 0}, "rounds: 0"),
        ({"grid": {"eta": "1"}}, "grid eta"),
    ],
)
def test_tune_names_its_arguments(tmp_path: Path, given: dict[str, object], line: str) -> None:
    with pytest.raises(fp.UserError) as refused:
        fp.tune(RECIPE, study=tmp_path / "study", **given)
    assert str(refused.value).startswith(line)
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"formats": ["gif"]}, "formats: 'gif'"),
        ({"formats": 3}, "formats: 3"),
        ({"layers": [3]}, "layers: "),
        ({"target": "0.9"}, "target: '0.9'"),
        ({"target": float("nan")}, "target: nan"),
        ({"out": 3}, "out: 3"),
        ({}, "nowhere: no run"),
    ],
)
def test_report_names_its_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(fp.UserError) as refused:
        fp.report("nowhere", **given)
    assert str(refused.value).startswith(line)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("wrong", [3, [None], pd.DataFrame({"run": [1]})])
def test_report_refuses_what_is_no_path(wrong: Any) -> None:
    for read in (fp.read_runs, fp.report):
        with pytest.raises(fp.UserError, match=r"^runs: .*: must be a path$"):
            read(wrong)


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
