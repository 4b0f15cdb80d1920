"""What mypy says of a user's program: a misspelt name or keyword is an error."""

from pathlib import Path

import pytest
from mypy import api

PROGRAM = """
import fednnnn_plugin as fp

run = fp.run("x", overwrite=True)
fp.figures.accuracy(fp.read_runs(run.folder), legend=True)
best: dict[str, float] = fp.tune("x", grid={"beta": [0.5, 0.7]}).best
page = fp.report("n-*", [run.folder], out="report", formats="png", layers=["fc1"]).name
fp.figures.partition([[1, 2]]).set_title("t")
fp.no_such_thing  # wrong
fp.run("x", overwritten=True)  # wrong
fp.tune("x", grids={})  # wrong
fp.report("x", output="y")  # wrong
fp.read_runs("x", folder="y")  # wrong
fp.figures.norms(1, label=True)  # wrong
fp.figures.partition("x", allow=True)  # wrong
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
    program.write_text(PROGRAM)
    config.write_text(CONFIG)
    found, _, _ = api.run([f"--config-file={config}", "--cache-dir=/dev/null", str(program)])
    errors = {int(line.split(":")[1]) for line in found.splitlines() if "error:" in line}
    lines = enumerate(PROGRAM.splitlines(), start=1)
    assert errors == {number for number, line in lines if "# wrong" in line}
