"""``results/``: its pages are those that its records make."""

from pathlib import Path

import pytest

import fednnnn_plugin as fp
from fednnnn_plugin.report.build import build_report

PROJECT = Path(__file__).parents[1]
RESULTS = PROJECT / "results"


@pytest.mark.slow
def test_results_page_is_the_report(tmp_path: Path) -> None:
    build_report([RESULTS], tmp_path)
    assert (RESULTS / "README.md").read_text() == (tmp_path / "README.md").read_text()
    figures = [{path.relative_to(of) for path in of.rglob("*.svg")} for of in (RESULTS, tmp_path)]
    assert figures[0] == figures[1]


def test_claims_tables_are_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PROJECT / "docs")
    import claims

    page = claims.PAGE.read_text()
    assert claims.filled(page, fp.read_runs(RESULTS)) == page
    assert page.count("\n| --- |") == 7
