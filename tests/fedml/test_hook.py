"""The import hook: acts when FedML is imported, leaves no trace before, breaks nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fednnnn_plugin.fedml import hook

# They import torch while the first tests run.
pytestmark = pytest.mark.usefixtures("programs")
PTH = Path(hook.__file__).with_name("fednnnn_plugin.pth")
IS_PATCHED = """
import fedml
print(hasattr(fedml.FedMLRunner._init_simulation_runner, "__fednnnn_wraps__"))
"""


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    """The folder of a package of FedML's shape that loads at once."""
    files = {
        "__init__.py": "__version__ = '0.9.6'\nfrom fedml.runner import FedMLRunner\n",
        "runner.py": "class FedMLRunner:\n    def _init_simulation_runner(self): return 'own'\n",
        "cli/modules/run.py": "",
    }
    for name, text in files.items():
        path = tmp_path / "fake" / "fedml" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "fake"


def python(*arguments: str, **environment: str) -> tuple[str, str]:
    """What an interpreter of its own prints, started where no package lies."""
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd="/",
        env=os.environ | {"FEDNNNN_PLUGIN_DISABLE": "0"} | environment,
        check=True,
    )
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
    assert python("-S", "-c", program, PYTHONPATH=str(fake)) == ("0.9.6\n", "")


REGISTER = """
import contextlib, sys
import fednnnn_plugin as fp
for _ in "twice":
    with contextlib.suppress(fp.UserError):  # the stand-in has no more than is looked at
        fp.register()
"""
RELOAD = """
import importlib as i, fedml, fedml.runner
i.reload(fedml.runner)
i.reload(fedml)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plugin", "before", "printed"),
    [
        (True, "", "True\n"),
        (False, "", "False\n"),
        (False, REGISTER + "print('fedml' in sys.modules)\n", "False\nTrue\n"),
        (False, "import fedml\n" + REGISTER, "True\n"),
        (True, RELOAD, "True\n"),
    ],
    ids=["installed", "off", "registered before", "registered after", "reloaded"],
)
def test_hook_patches_fedml_when_imported(plugin, before, printed, run_program, fake) -> None:
    done = run_program(before + IS_PATCHED, fake, plugin=plugin)
    assert (done.stdout, done.stderr) == (printed, "")


def test_hook_hides_pinned_packages_warnings(run_program, fake) -> None:
    raising = (
        "import fedml, warnings\n"
        "warnings.warn('pkg_resources is deprecated as an API. See https://...')\n"
        'warnings.warn("urllib3 (2.7) or chardet (7.7) doesn\'t match a supported version!")\n'
        "warnings.warn('something else')"
    )
    shown = run_program(raising, fake).stderr
    assert shown.count("UserWarning: ") == shown.count("UserWarning: something else") == 1


def test_hook_error_leaves_fedml_working(run_program, fake) -> None:
    program = (
        "import fednnnn_plugin.fedml.patches.runner as runner\n"
        "def broken(_): raise RuntimeError('boom')\n"
        "runner.apply = broken\n"
        "import fedml; print(fedml.FedMLRunner()._init_simulation_runner())"
    )
    done = run_program(program, fake)
    assert done.stdout == "own\n"
    assert "could not patch fedml and is off: RuntimeError('boom')" in done.stderr


def test_hook_leaves_other_modules_alone() -> None:
    for name in ("json", "fedml.runner"):
        assert hook.PatchingFinder.find_spec(name) is None
    assert hook.PatchingFinder.find_spec("fedml", path=[]) is None
