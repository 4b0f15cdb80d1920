"""The import hook: acts when FedML is imported, leaves no trace before, breaks nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fednnnn_plugin.fedml import hook

PTH = Path(hook.__file__).with_name("fednnnn_plugin.pth")
# An error of ours; a second registration, of a stand-in that has no more than is looked at.
IN_TURN = """
import contextlib, importlib, sys, warnings
import fednnnn_plugin as fp
from fednnnn_plugin.fedml.patches import runner

works, runner.apply = runner.apply, lambda module: 1 / 0
for _ in "twice":
    fp.register()
assert "fedml" not in sys.modules
import fedml
assert fedml.FedMLRunner()._init_simulation_runner() == "own"
for patch in (fp.register, lambda: importlib.reload(fedml)):
    importlib.reload(fedml.runner)
    runner.apply = works
    with contextlib.suppress(fp.UserError):
        patch()
    assert hasattr(fedml.runner.FedMLRunner._init_simulation_runner, "__fednnnn_wraps__")
warnings.warn("pkg_resources is deprecated as an API. See https://...")
warnings.warn("urllib3 (2.7) or chardet (7.7) doesn't match a supported version!")
warnings.warn("something else")
"""


@pytest.fixture
def fake(tmp_path: Path) -> str:
    """The folder of a package of FedML's shape that loads at once."""
    init = "__version__ = '0.9.6'\nfrom fedml.runner import FedMLRunner\n"
    runner = "class FedMLRunner:\n    def _init_simulation_runner(self): return 'own'\n"
    (tmp_path / "fedml").mkdir()
    for name, text in (("__init__", init), ("runner", runner)):
        (tmp_path / "fedml" / f"{name}.py").write_text(text)
    return str(tmp_path)


def python(*arguments: str, **environment: str) -> tuple[str, str]:
    """What an interpreter of its own prints, started where no package lies."""
    own = os.environ | {"FEDNNNN_PLUGIN_DISABLE": "0"} | environment
    command = (sys.executable, *arguments)
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", env=own, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_hook_loads_nothing_before_fedml() -> None:
    assert PTH.read_text().startswith("import ")
    assert PTH.read_text().count("\n") == 1
    program = (
        "import sys; print([getattr(f, '__name__', '') for f in sys.meta_path][0]);"
        "print([m for m in sys.modules if m.startswith('fednnnn')])"
    )
    assert python("-c", program) == ("FednnnnPluginHook\n[]\n", "")


def test_hook_without_the_package_lets_fedml_be(fake) -> None:
    program = f"exec(open({str(PTH)!r}).read())\nimport fedml; print(fedml.__version__)"
    # -S: site-packages is not on the path
    assert python("-S", "-c", program, PYTHONPATH=fake) == ("0.9.6\n", "")


@pytest.mark.slow
def test_hook_outlives_errors_and_reloads(fake) -> None:
    """A warning of its own and the script's are shown, not those of the packages FedML pins."""
    path = os.pathsep.join((fake, *sys.path))
    shown = python("-c", IN_TURN, PYTHONPATH=path)[1].splitlines()
    said = [line.partition("Warning: ")[2] for line in shown if "Warning: " in line]
    assert len(said) == 2
    assert "could not patch fedml and is off: ZeroDivisionError" in said[0]
    assert said[1] == "something else"
