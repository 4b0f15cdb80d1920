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
"""
WRONG = """
import fednnnn_plugin as fp

fp.no_such_thing
fp.run("x", overwritten=True)
fp.figures.accuracy(1, colour=2)
fp.tune("x", grids={})
fp.report("x", output="y")
"""


def test_mypy_finds_what_is_misspelt(tmp_path: Path) -> None:
    (tmp_path / "correct.py").write_text(CORRECT)
    (tmp_path / "wrong.py").write_text(WRONG)
    paths = [str(tmp_path / name) for name in ("correct.py", "wrong.py")]
    found, _, _ = api.run(["--ignore-missing-imports", f"--cache-dir={tmp_path / 'm'}", *paths])
    errors = [line for line in found.splitlines() if ": error:" in line]
    assert not [line for line in errors if "wrong.py" not in line], found
    assert {int(line.split("wrong.py:")[1].split(":")[0]) for line in errors} == {4, 5, 6, 7, 8}
