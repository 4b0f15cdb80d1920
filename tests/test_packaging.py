"""What `python -m build` makes leaves a working `fedml run`, recipes and hook included."""

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source distribution as an installer would."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out)]
    subprocess.run([*command, str(PROJECT)], check=True, capture_output=True)
    [built] = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def interpreter(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel; its dependencies are those of the tests."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    [site_packages] = folder.glob("lib/python*/site-packages")
    (site_packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    zipfile.ZipFile(wheel).extractall(site_packages)  # as installers do
    return folder / "bin" / "python"


def test_wheel_holds_recipes_hook_and_page(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    recipes = {path.name for path in (PROJECT / "recipes").glob("*.yaml")}
    packed = [Path(name) for name in names if name.startswith("fednnnn_plugin/recipes/")]
    assert {path.name for path in packed if path.suffix == ".yaml"} == recipes
    assert "fednnnn_plugin.pth" in names
    assert "fednnnn_plugin/py.typed" in names
    assert "fednnnn_plugin/report/page.html" in names
    assert not any(name.startswith(("tests/", "launch/")) for name in names)


@pytest.mark.fedml
def test_wheel_runs_a_recipe_by_name(interpreter: Path, tmp_path: Path) -> None:
    program = "import fednnnn_plugin; print(fednnnn_plugin.__file__)\n"
    program += "from fedml.cli.cli import cli; cli()"
    short = ["--set", "train_args.comm_round=1", "--set", "train_args.epochs=1"]
    printed = subprocess.run(
        [interpreter, "-I", "-c", program, "run", "digits_noniid_b_fednnnn.yaml", *short],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=tmp_path,
    ).stdout
    assert Path(printed.splitlines()[0]).is_relative_to(interpreter.parents[1])
    assert "after 1 rounds" in printed
    assert (tmp_path / "runs" / "digits_noniid_b_fednnnn-seed0" / "summary.json").exists()
