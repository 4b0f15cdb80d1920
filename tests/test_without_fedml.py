"""Without FedML, as on Python 3.12 and later: everything works that is not FedML's."""

import ast
import re
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest

import fednnnn_plugin

ROOT = Path(fednnnn_plugin.__file__).parent
MODULES = [
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(ROOT.rglob("*.py"))
]
ELSEWHERE = [name for name in MODULES if not name.startswith("fednnnn_plugin.fedml")]
# Modules of another name than what is installed.
INSTALLED_AS = {"PIL": "pillow", "sklearn": "scikit-learn", "yaml": "pyyaml"}
BLOCKED = """
import sys
from importlib.machinery import PathFinder

find_spec = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name == "fedml" else find_spec(name, *rest)
import importlib.metadata
version = importlib.metadata.version

def without_fedml(name):
    if name == "fedml":
        raise importlib.metadata.PackageNotFoundError(name)
    return version(name)

importlib.metadata.version = without_fedml
import fednnnn_plugin as fp
"""


def in_a_process(text: str, **keywords: object) -> str:
    """Run a program where FedML cannot be found; return what it printed."""
    ended = subprocess.run(
        [sys.executable, "-c", BLOCKED + text],
        capture_output=True,
        text=True,
        check=False,
        **keywords,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_modules_elsewhere_import_what_the_package_declares() -> None:
    """FedML itself and the distributions that come only with it are not among that."""
    texts = [text for text in requires("fednnnn-plugin") or [] if "'dev'" not in text]
    declared = {normalised(re.match(r"[\w.-]+", text)[0]) for text in texts} - {"fedml"}
    for name in ELSEWHERE:
        path = ROOT.parent / name.replace(".", "/")
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names.append(node.module)
            for root in {each.partition(".")[0] for each in names}:
                if root in sys.stdlib_module_names or root == "fednnnn_plugin":
                    continue
                assert normalised(INSTALLED_AS.get(root, root)) in declared, (
                    f"{name} imports {root}"
                )


@pytest.mark.slow
def test_modules_elsewhere_import_without_fedml() -> None:
    in_a_process(f"import importlib\nfor name in {ELSEWHERE}: importlib.import_module(name)")


@pytest.mark.slow
def test_public_names_without_fedml() -> None:
    printed = in_a_process(
        "from fednnnn_plugin import *\n"
        "import pydoc\n"
        "pydoc.plain(pydoc.render_doc(fp))\n"
        "print([name for name in dir(fp) if getattr(fp, name) is None])\n"
        "print(run, FedNNNN)"
    )
    assert printed.startswith("[]\n<function run ")


def test_names_of_fedml_say_python_and_remedy() -> None:
    printed = in_a_process(
        "for sys.version_info in ((3, 11), (3, 13)):\n"
        "    for use in ('FedNNNNAggregator', 'FedNNNNClientTrainer', 'register'):\n"
        "        try: getattr(fp, use)()\n"
        "        except fp.UserError as error: print(error)\n"
    )
    lines = printed.splitlines()
    assert len(lines) == 6
    for number, line in enumerate(lines):
        assert "FedML 0.9.6" in line
        assert ("pip install fedml==0.9.6" in line) == (number < 3)
        assert ("uv venv --python 3.11" in line) == (number >= 3)


def test_hook_is_silent_without_fedml() -> None:
    pth = (ROOT / "fedml" / "fednnnn_plugin.pth").read_text()
    program = f"exec({pth!r})\ntry: import fedml\nexcept ModuleNotFoundError as error: print(error)"
    assert in_a_process(program) == "No module named 'fedml'\n"


@pytest.mark.slow
def test_fednnnn_run_with_mlops_runs_without_fedml(tmp_path: Path) -> None:
    ended = subprocess.run(
        [
            *(sys.executable, "-c", BLOCKED + "from fednnnn_plugin.cli import main; main()"),
            *("run", "digits_noniid_b_fednnnn", "--output", "run"),
            *("--set", "common_args.using_mlops=true", "--set", "train_args.comm_round=1"),
            *("--set", "train_args.client_num_per_round=2", "--set", "device_args.using_gpu=false"),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert ended.returncode == 0, ended.stderr
    [line] = ended.stderr.splitlines()
    assert "common_args.using_mlops: true" in line
    assert "3.10" in line
