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


CONFIG = """
[mypy]
ignore_missing_imports = true
[mypy-torch.*,torchvision.*,numpy.*,pandas.*,matplotlib.*,optuna.*,sklearn.*,pydantic.*,click.*,PIL.*]
follow_imports = skip
"""


def test_mypy_finds_what_is_misspelt(tmp_path: Path) -> None:
    for name, text in {"correct.py": CORRECT, "wrong.py": WRONG, "mypy.ini": CONFIG}.items():
        (tmp_path / name).write_text(text)
    paths = [str(tmp_path / name) for name in ("correct.py", "wrong.py")]
    options = [f"--config-file={tmp_path / 'mypy.ini'}", f"--cache-dir={tmp_path / 'cache'}"]
    found, _, _ = api.run([*options, *paths])
    errors = [line for line in found.splitlines() if ": error:" in line]
    wrong = range(5, WRONG.count("\n") + 1)
    assert {line.partition(": error:")[0] for line in errors} == {
        f"{tmp_path / 'wrong.py'}:{number}" for number in wrong
    }
