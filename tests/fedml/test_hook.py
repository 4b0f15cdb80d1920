"""The import hook: acts when FedML is imported, leaves no trace before, breaks nothing."""

import sys
from pathlib import Path

import pytest

from fednnnn_plugin.fedml import hook

PTH = Path(hook.__file__).with_name("fednnnn_plugin.pth")

IS_PATCHED = """
import fedml
print(hasattr(fedml.FedMLRunner._init_simulation_runner, "__fednnnn_wraps__"))
"""


def test_the_pth_is_one_line_that_site_runs() -> None:
    text = PTH.read_text()
    assert text.startswith("import ")
    assert text.count("\n") == 1
    assert text.endswith("\n")


def test_an_interpreter_that_does_not_import_fedml_loads_nothing_of_ours(run_python) -> None:
    shown = run_python(
        "-c",
        "import sys; print([type(f).__name__ == 'type' and f.__name__ for f in sys.meta_path][0]);"
        "print([m for m in sys.modules if m.startswith('fednnnn')])",
    )
    assert shown.stdout.split("\n")[:2] == ["FednnnnPluginHook", "[]"]
    assert shown.stderr == ""


def test_importing_fedml_is_enough(run_python, fake_fedml) -> None:
    done = run_python("-c", IS_PATCHED, path=fake_fedml())
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_the_environment_variable_turns_it_off(run_python, fake_fedml) -> None:
    done = run_python("-c", IS_PATCHED, path=fake_fedml(), FEDNNNN_PLUGIN_DISABLE="1")
    assert (done.stdout, done.stderr) == ("False\n", "")


@pytest.mark.slow
def test_turned_off_it_stays_off_where_our_aggregator_is_used(run_python) -> None:
    program = (
        "import fednnnn_plugin as fp, torch\n"
        "from types import SimpleNamespace\n"
        "args = SimpleNamespace(beta=0.5, gamma=0.5)\n"
        "fp.FedNNNNAggregator(torch.nn.Linear(2, 2), args)\n" + IS_PATCHED
    )
    done = run_python("-c", program, FEDNNNN_PLUGIN_DISABLE="1")
    assert done.stdout.splitlines()[-1] == "False", done.stderr


@pytest.mark.parametrize("order", ["before", "after"])
def test_register_works_on_either_side_of_the_import(run_python, fake_fedml, order: str) -> None:
    register = "import fednnnn_plugin as fp; fp.register(); fp.register()\n"
    program = (
        register + IS_PATCHED if order == "before" else "import fedml\n" + register + IS_PATCHED
    )
    done = run_python("-c", program, path=fake_fedml(), FEDNNNN_PLUGIN_DISABLE="1")
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_register_before_the_import_does_not_import_fedml(run_python, fake_fedml) -> None:
    program = "import sys, fednnnn_plugin as fp; fp.register(); print('fedml' in sys.modules)"
    assert run_python("-c", program, path=fake_fedml()).stdout == "False\n"


def test_without_the_package_the_pth_lets_fedml_be(run_python, fake_fedml) -> None:
    program = f"exec(open({str(PTH)!r}).read())\nimport fedml; print(fedml.__version__)"
    # -S: site-packages is not on the path
    done = run_python("-S", "-c", program, PYTHONPATH=str(fake_fedml()))
    assert (done.stdout, done.stderr) == ("0.9.6\n", "")


def test_the_warnings_of_what_fedml_pins_are_not_shown(run_python, fake_fedml) -> None:
    raising = (
        "import sys, warnings\n"
        "import fedml\n"
        "warnings.warn('pkg_resources is deprecated as an API. See https://...')\n"
        'warnings.warn("urllib3 (2.7) or chardet (7.7) doesn\'t match a supported version!")\n'
        "warnings.warn('something else')"
    )
    shown = run_python("-c", raising, path=fake_fedml()).stderr
    assert "something else" in shown
    assert "pkg_resources" not in shown
    assert "chardet" not in shown


def test_a_fedml_that_is_not_there_is_not_found() -> None:
    assert hook.PatchingFinder.find_spec("fedml", path=[]) is None


def test_an_error_of_ours_leaves_fedml_working_and_says_so(run_python, fake_fedml) -> None:
    program = (
        "import fednnnn_plugin.fedml.patches.runner as runner\n"
        "def broken(): raise RuntimeError('boom')\n"
        "runner.apply = broken\n"
        "import fedml; print(fedml.FedMLRunner('args').runner)"
    )
    done = run_python("-c", program, path=fake_fedml())
    assert done.stdout == "('own', 'args')\n"
    assert "could not patch fedml and is off: RuntimeError('boom')" in done.stderr


def test_patched_modules_keep_their_own_loader(run_python, fake_fedml) -> None:
    program = (
        "import fedml, importlib.util, inspect\n"
        "print(type(fedml.__loader__).__name__, type(fedml.__spec__.loader).__name__)\n"
        "print('__version__' in inspect.getsource(fedml))\n"
        "print(importlib.util.find_spec('fedml.cli.modules.run').loader.get_filename()[-6:])\n"
    )
    done = run_python("-c", program, path=fake_fedml())
    assert done.stdout == "SourceFileLoader SourceFileLoader\nTrue\nrun.py\n", done.stderr


def test_reloading_fedml_patches_it_again(run_python, fake_fedml) -> None:
    program = "import importlib, fedml.runner\nimportlib.reload(fedml.runner)\n"
    program += "importlib.reload(fedml)\n" + IS_PATCHED
    assert run_python("-c", program, path=fake_fedml()).stdout == "True\n"


def test_install_twice_puts_one_finder_and_takes_the_placeholder_away() -> None:
    before = list(sys.meta_path)
    try:
        placeholder = type("Placeholder", (), {})
        sys.meta_path[:] = [placeholder, *before]
        hook.install(placeholder)
        hook.install()
        assert placeholder not in sys.meta_path
        assert sys.meta_path.count(hook.PatchingFinder) == 1
    finally:
        sys.meta_path[:] = before


def test_the_finder_leaves_every_other_module_alone() -> None:
    assert hook.PatchingFinder.find_spec("json") is None
    assert hook.PatchingFinder.find_spec("fedml.runner") is None
