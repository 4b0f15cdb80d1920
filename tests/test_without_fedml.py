"""Without FedML, as without its extra or on Python 3.12: all works that is not FedML's."""

import subprocess
import sys
from pathlib import Path

import pytest

from .support.commands import quick_words
from .test_house import MODULES, ROOT

PLATFORMS = ["fedml"], ["flower"]
OTHERS = [name for name in MODULES if name.split(".")[1:2] not in PLATFORMS]
#: In one process: the hook, the modules, the public names, FedML's names, and a run.
PROGRAM = f"""
import importlib.metadata
import sys
from importlib.machinery import PathFinder

real, find_spec, version = sys.version_info, PathFinder.find_spec, importlib.metadata.version
PathFinder.find_spec = lambda name, *rest: None if name == "fedml" else find_spec(name, *rest)

def without_fedml(name):
    if name == "fedml":
        raise importlib.metadata.PackageNotFoundError(name)
    return version(name)

importlib.metadata.version = without_fedml
exec({(ROOT / "fedml" / "fednnnn_plugin.pth").read_text()!r})
try: import fedml
except ModuleNotFoundError as error: print(error)

for name in {OTHERS}: importlib.import_module(name)
import fednnnn_plugin as fp
from fednnnn_plugin import *
print(run.__name__, FedNNNN.__name__, "register" in dir(fp), "FedNNNNAggregator" in dir(fp))

for sys.version_info, use in ((3, 11), "FedNNNNAggregator"), ((3, 13), "register"):
    try: getattr(fp, use)()
    except fp.UserError as error: print(error)
sys.version_info = real

from fednnnn_plugin.cli import main
main()
"""


@pytest.mark.slow
def test_package_works_without_fedml(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, *quick_words("run", using_mlops=True)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    missing, public, older, newer = ended.stdout.splitlines()[:4]
    assert missing == "No module named 'fedml'"  # and the hook said nothing
    assert public == "run FedNNNN True False"
    assert "'.[fedml]'" in older
    assert "'.[fedml]'" in newer
    assert "uv venv --seed --python 3.11" in newer
    [line] = ended.stderr.splitlines()
    assert "common_args.using_mlops: true" in line
    assert (tmp_path / "run" / "summary.json").exists()
