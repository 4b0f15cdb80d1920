"""What `python -m build` makes leaves a working `fedml run`, recipes and hook included."""

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from .support.commands import RECIPE, quick

PROJECT = Path(__file__).parents[1]
PROGRAM = """
import fednnnn_plugin
print(fednnnn_plugin.__file__)
from fedml.cli.cli import cli
cli()
"""


@pytest.mark.slow
@pytest.mark.fedml
def test_wheel_runs_a_recipe_by_name(tmp_path: Path) -> None:
    """The wheel is built from the source distribution and unpacked, as installers do."""
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path, PROJECT]
    subprocess.run(build, check=True, capture_output=True)
    [path] = tmp_path.glob("*.whl")
    wheel, environment = zipfile.ZipFile(path), tmp_path / "environment"
    names = set(wheel.namelist())
    assert {"fednnnn_plugin/py.typed", "fednnnn_plugin/reporting/page.html"} <= names
    assert not [name for name in names if name.startswith(("tests/", "launch/"))]
    venv.create(environment, symlinks=True)
    [site_packages] = environment.glob("lib/python*/site-packages")
    (site_packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    wheel.extractall(site_packages)
    command = [environment / "bin" / "python", "-I", "-c", PROGRAM, "run", RECIPE, *quick()]
    shown = {"capture_output": True, "text": True, "cwd": tmp_path}
    ended = subprocess.run(command, check=True, **shown)
    assert Path(ended.stdout.splitlines()[0]).is_relative_to(environment)
    assert ended.stderr == ""  # nothing of FedML's
    assert (tmp_path / "runs" / f"{RECIPE}-seed0" / "summary.json").exists()
