"""The import hook: acts when FedML is imported, leaves no trace before, breaks nothing."""

import importlib
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import fednnnn_plugin as fp
from fednnnn_plugin.fedml import hook
from fednnnn_plugin.fedml.patches import runner

PTH = Path(hook.__file__).with_name("fednnnn_plugin.pth")


@pytest.fixture
def fake(tmp_path: Path) -> str:
    """The folder of a package of FedML's shape that loads at once."""
    init = "__version__ = '0.9.6'\nfrom fedml.runner import FedMLRunner\n"
    runner = "class FedMLRunner:\n    def _init_simulation_runner(self): return 'own'\n"
    (tmp_path / "fedml").mkdir()
    for name, text in (("__init__", init), ("runner", runner)):
        (tmp_path / "fedml" / f"{name}.py").write_text(text)
    return str(tmp_path)


def python(*arguments: str, **environment: str) -> str:
    """What an interpreter of its own prints, started where no package lies."""
    own = os.environ | {"FEDNNNN_PLUGIN_DISABLE": "0", "PYTHONWARNINGS": ""} | environment
    command, both = (sys.executable, *arguments), subprocess.STDOUT
    return subprocess.check_output(command, text=True, cwd="/", env=own, stderr=both)


def test_hook_loads_nothing_before_fedml() -> None:
    assert PTH.read_text().startswith("import ")
    assert PTH.read_text().count("\n") == 1
    program = (
        "import sys; print([getattr(f, '__name__', '') for f in sys.meta_path][0]);"
        "print([m for m in sys.modules if m.startswith('fednnnn')])"
    )
    assert python("-c", program) == "FednnnnPluginHook\n[]\n"


def test_hook_without_the_package_lets_fedml_be(fake) -> None:
    program = f"exec({PTH.read_text()!r})\nimport fedml; print(fedml.__version__)"
    # -S: site-packages is not on the path
    assert python("-S", "-c", program, PYTHONPATH=fake) == "0.9.6\n"


def test_hook_outlives_errors_and_reloads(fake, monkeypatch) -> None:
    """A warning of its own and the script's are shown, not those of the packages FedML pins."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "fedml"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(fake)
    with warnings.catch_warnings(record=True) as shown, monkeypatch.context() as broken:
        warnings.simplefilter("always")
        broken.setattr(runner, "apply", lambda module: 1 / 0)
        for _ in "twice":
            fp.register()
        assert "fedml" not in sys.modules
        fedml = importlib.import_module("fedml")
        assert fedml.FedMLRunner()._init_simulation_runner() == "own"
        broken.undo()
        for patch in (fp.register, lambda: importlib.reload(fedml)):
            importlib.reload(fedml.runner)
            patch()
            assert hasattr(fedml.runner.FedMLRunner._init_simulation_runner, "__fednnnn_wraps__")
        warnings.warn("pkg_resources is deprecated as an API. See https://...", stacklevel=1)
        warnings.warn("urllib3 (2.7) doesn't match a supported version!", stacklevel=1)
        warnings.warn("something else", stacklevel=1)
    kinds = RuntimeWarning, UserWarning  # a ResourceWarning is some other test's
    off, other = (str(warning.message) for warning in shown if warning.category in kinds)
    assert "could not patch fedml and is off: ZeroDivisionError" in off
    assert other == "something else"


@pytest.mark.slow
@pytest.mark.every_python
def test_import_of_the_room_stands_in_for_the_hook(fake) -> None:
    wrapped = "hasattr(fedml.FedMLRunner._init_simulation_runner, '__fednnnn_wraps__')"
    environment = {"FEDNNNN_PLUGIN_DISABLE": "1", "PYTHONPATH": fake}
    for imports in ("fednnnn_plugin.fedml, fedml", "fedml, fednnnn_plugin.fedml", "fedml"):
        said = python("-c", f"import {imports}; print({wrapped})", **environment)
        assert said == f"{'fednnnn' in imports}\n"
