"""CSV of what stands in somebody else's run folders."""

import csv
import io
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from fednnnn_plugin.report.build import build_report
from fednnnn_plugin.report.cells import as_csv

from .conftest import bare


def test_csv_text_is_no_formula() -> None:
    table = pd.DataFrame(
        {
            "name": ["=1+1", "+x", "-x", "@x", "\tx", "a\r=b", "a=b", "-1e-3", "-inf", None],
            "=HYPERLINK(1)": range(-9, 1),
            "norm": [-0.5] * 10,
        }
    )
    head, *rows = csv.reader(io.StringIO(as_csv(table).decode(), newline=""))
    assert head == ["name", "'=HYPERLINK(1)", "norm"]
    expected = ["'=1+1", "'+x", "'-x", "'@x", "'\tx", "a =b", "a=b", "-1e-3", "-inf", ""]
    assert [row[0] for row in rows] == expected
    assert [row[1:] for row in rows] == [[str(n), "-0.5"] for n in range(-9, 1)]


def test_csv_of_another_users_run_has_no_formula(
    make_run: Callable[..., Path], tmp_path: Path
) -> None:
    def change(line: dict[str, object]) -> None:
        bare(line)
        line["test_metrics"] = {"@SUM(1)": 0.5}

    run = make_run("FedNNNN", name="=1+1", model="=cmd()", change=change)
    build_report([run], tmp_path / "report")
    tables = [*(tmp_path / "report").glob("*.csv")]
    cells = [c for path in tables for row in csv.reader(path.open(newline="")) for c in row]
    assert {"'=1+1", "'=cmd()"} <= {*cells}
    assert not [cell for cell in cells if cell[:1] in ("=", "@", "+")]
