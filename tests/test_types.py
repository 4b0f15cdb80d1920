"""What mypy says of a user's program: a misspelt name or keyword is an error."""

from pathlib import Path

import pytest
from mypy import api

CORRECT = """
import fednnnn_plugin as fp

run = fp.run("x", overwrite=True)
runs = fp.read_runs(run.folder)
fp.figures.accuracy(runs, legend=True)
net = fp.load_model(run.folder)
best: dict[str, float] = fp.tune("x", grid={"beta": [0.5, 0.7]}).best
page = fp.report("n-*", [run.folder], out="report", formats="png", layers=["fc1"]).name
fp.figures.partition([[1, 2]]).set_title("t")
"""
WRONG = """
fp.no_such_thing
fp.run("x", overwritten=True)
fp.tune("x", grids={})
fp.report("x", output="y")
fp.read_runs("x", folder="y")
fp.figures.accuracy(1, colour=2)
fp.figures.norms(runs, label=True)
fp.figures.partition("x", allow=True)
"""
CONFIG = """
[mypy]
ignore_missing_imports = true
[mypy-torch.*,torchvision.*,numpy.*,pandas.*,matplotlib.*,optuna.*,sklearn.*,pydantic.*,click.*,PIL.*]
follow_imports = skip
"""


@pytest.mark.slow
def test_mypy_finds_what_is_misspelt(tmp_path: Path) -> None:
    program, config = tmp_path / "program.py", tmp_path / "mypy.ini"
    program.write_text(CORRECT + WRONG)
    config.write_text(CONFIG)
    options = [f"--config-file={config}", f"--cache-dir={tmp_path / 'cache'}"]
    found, _, _ = api.run([*options, str(program)])
    lines = (CORRECT + WRONG).splitlines()
    errors = {lines[int(line.split(":")[1]) - 1] for line in found.splitlines() if "error:" in line}
    assert errors == set(WRONG.split("\n")) - {""}
