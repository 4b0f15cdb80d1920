"""What mypy says of a user's program: a misspelt name or keyword is an error."""

from pathlib import Path

import pytest
from mypy import api

pytestmark = pytest.mark.slow

CORRECT = """
import fednnnn_plugin as fp

run = fp.run("x", overwrite=True)
runs = fp.read_runs(run.folder)
fp.figures.accuracy(runs, legend=True)
net = fp.load_model(run.folder)
best: dict[str, float] = fp.tune("x", grid={"beta": [0.5, 0.7]}).best
page = fp.report(run.folder, out="report").name
fp.figures.partition([[1, 2]]).set_title("t")
fp.figures.partition("x", allow_code=True)
fp.report("n-*", [run.folder], formats="png", layers=["fc1"])
"""
WRONG = """
import fednnnn_plugin as fp

runs = fp.read_runs("x")
fp.no_such_thing
fp.run("x", overwritten=True)
fp.figures.accuracy(1, colour=2)
fp.tune("x", grids={})
fp.report("x", output="y")
fp.read_runs("x", folder="y")
fp.figures.accuracy(runs, colunm="test_acc")
fp.figures.accuracy_by_seconds(runs, scales="error")
fp.figures.loss(runs, palettes={})
fp.figures.metric(runs, names="mse")
fp.figures.norms(runs, layers="fc1")
fp.figures.agreement(runs, legends=True)
fp.figures.integrated_norm(runs, axes=None)
fp.figures.client_spread(runs, label=True)
fp.figures.search("study", steps="eta")
fp.figures.partition("x", allow=True)
fp.figures.client_sizes(1, axes=None)
"""


def test_mypy_finds_what_is_misspelt(tmp_path: Path) -> None:
    (tmp_path / "correct.py").write_text(CORRECT)
    (tmp_path / "wrong.py").write_text(WRONG)
    paths = [str(tmp_path / name) for name in ("correct.py", "wrong.py")]
    found, _, _ = api.run(["--ignore-missing-imports", f"--cache-dir={tmp_path / 'm'}", *paths])
    errors = [line for line in found.splitlines() if ": error:" in line]
    assert not [line for line in errors if "wrong.py" not in line], found
    wrong = range(5, WRONG.count("\n") + 1)
    assert {int(line.split("wrong.py:")[1].split(":")[0]) for line in errors} == {*wrong}
