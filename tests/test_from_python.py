"""``fp.report`` and ``fp.tune``: what the commands do, called from Python."""

from pathlib import Path

import pytest

import fednnnn_plugin as fp
from fednnnn_plugin.tune import tuning

RECIPE = "digits_noniid_b_fednnnn"
SMALL = {
    "train_args.client_num_in_total": 10,
    "train_args.client_num_per_round": 2,
    "train_args.epochs": 1,
    "device_args.using_gpu": False,
}


@pytest.mark.slow
def test_tune_and_report_return_what_was_found(tmp_path: Path) -> None:
    found = fp.tune(
        RECIPE, grid={"beta": [0.5, 0.7]}, overrides=SMALL, rounds=1, study=tmp_path / "study"
    )
    assert isinstance(found, tuning.Tuning)
    assert found.best["beta"] in found.trials["beta"].tolist() == [0.5, 0.7]
    assert f"beta: {found.best['beta']}" in found.recipe.read_text()
    page = fp.report(found.folder, out=tmp_path / "report")
    assert page == tmp_path / "report" / "index.html"
    assert page.is_file()


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"jobs": 0}, "jobs: 0"),
        ({"rounds": 0}, "rounds: 0"),
        ({"grid": {"eta": "1"}}, "grid eta"),
    ],
)
def test_tune_names_its_arguments(tmp_path: Path, given: dict[str, object], line: str) -> None:
    with pytest.raises(fp.UserError) as refused:
        fp.tune(RECIPE, study=tmp_path / "study", **given)
    assert str(refused.value).startswith(line)
    assert not (tmp_path / "study").exists()


def test_report_names_its_arguments(tmp_path: Path) -> None:
    with pytest.raises(fp.UserError, match=r"^formats: .gif"):
        fp.report(tmp_path, out=tmp_path / "report", formats=["gif"])
    with pytest.raises(fp.UserError, match="no run"):
        fp.report(tmp_path, out=tmp_path / "report")
