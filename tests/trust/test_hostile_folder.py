"""The working directory may be a stranger's: nothing in it runs without ``--allow-code``."""

import json
import os
import subprocess
import sys
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

import fednnnn_plugin as fp
from fednnnn_plugin.cli import main
from fednnnn_plugin.processes.interpreter import python_command
from fednnnn_plugin.recipe import find_recipe

from ..support.commands import RECIPE, quick, quick_words

FEDNNNN = Path(sys.executable).with_name("fednnnn")


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder with a module for each that Python and the packages have, and settings of figures.

    Each module that is imported leaves its name in a file.
    """
    here = tmp_path / "hostile"
    installed = {name for name in packages_distributions() if name.isidentifier()}
    for name in {*sys.stdlib_module_names, *installed, "flwr", "datasets", "usercustomize"}:
        (here / name).mkdir(parents=True)
        leave = f"open({str(here / 'imported')!r}, 'a').write('{name}\\n')\n"
        for file in ("__init__", "__main__"):
            (here / name / f"{file}.py").write_text(leave)
    (here / "fedml" / "cli").mkdir()
    for file in ("fedml/cli/__init__.py", "fedml/cli/cli.py"):
        (here / file).write_text((here / "fedml/__init__.py").read_text())
    (here / "matplotlibrc").write_text("backend: module://fedml\ntext.usetex: true\n")
    return here


#: Commands one after another in a process, started as `fednnnn` is, but from another folder.
SEVERAL = """
import json, sys
from fednnnn_plugin.cli import main

for words in json.loads(sys.argv.pop()):
    main(words, standalone_mode=False)
"""


@pytest.mark.slow
def test_nothing_of_the_working_directory_is_imported(hostile: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    services = {"enable_wandb": True, "using_mlops": bool(find_spec("fedml"))}
    several = [
        ["recipes", "copy", "mine"],
        ["tune", RECIPE, *quick(), "--grid=beta=0.5,0.7", "--rounds=1", "--jobs=2"],
        ["report", "run"],
    ]
    program = tmp_path / "several.py"
    program.write_text(SEVERAL)
    for command in (
        [FEDNNNN, *quick_words("run", "--tensorboard", **services)],
        [sys.executable, program, json.dumps(several)],
    ):
        ended = subprocess.run(
            command, cwd=hostile, env=environment, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, (command, ended.stderr)
        imported = hostile / "imported"
        assert not imported.exists(), (command, imported.read_text())
    assert (hostile / "report" / "index.html").exists()


class Shown(str):
    def __repr__(self) -> str:
        return "a text"


def test_new_processes_import_from_where_this_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python passes over what is no text in its path."""
    monkeypatch.setattr(sys, "path", ["", Path("passed over"), Shown("first"), *sys.path])
    command = python_command("print(sys.path[0], *sys.argv[1:])", "second")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("first second\n", "")


@pytest.mark.parametrize("key", ["tracking_args.enable_wandb", "common_args.using_mlops"])
@pytest.mark.slow
def test_service_needs_the_users_word(own_code: Path, key: str) -> None:
    name = key.partition(".")[2]
    text = find_recipe(RECIPE).read_text()
    assert f"{name}: false" in text
    Path("mine.yaml").write_text(text.replace(f"{name}: false", f"{name}: true"))
    ended = CliRunner().invoke(main, ["run", "mine.yaml", *quick()])
    assert ended.exit_code == 2, ended.output
    with pytest.raises(fp.UserError, match=f"^{key}: "):
        fp.run("mine.yaml")
    assert not Path("runs").exists()
    unasked = CliRunner().invoke(main, ["run", "mine.yaml", *quick(), f"--set={key}=false"])
    assert unasked.exit_code == 0
