"""Real processes with the plugin installed, and a package of FedML's shape that loads at once."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

_OPTREPO = """
import torch
class OptRepo:
    repo = {x.__name__.lower(): x for x in torch.optim.Optimizer.__subclasses__()}
    @classmethod
    def name2cls(cls, name): return cls.repo[name.lower()]
    @classmethod
    def get_opt_names(cls): return list(cls.repo)
    @classmethod
    def supported_parameters(cls, opt): return []
"""

_FAKE = {
    "__init__.py": "__version__ = 'VERSION'\nfrom fedml import device, data, model, runner\n"
    "from fedml.runner import FedMLRunner\n",
    "runner.py": "class FedMLRunner:\n"
    "    def __init__(self, args, *rest): self.runner = self._init_simulation_runner(args, *rest)\n"
    "    def _init_simulation_runner(self, args, *rest): return ('own', args, *rest)\n"
    "    def _init_cross_silo_runner(self, args, *rest): return ('own', args, *rest)\n",
    "data/__init__.py": "from .data_loader import load\n",
    "data/data_loader.py": "def load(args): return 'own', args\n",
    "model/__init__.py": "from .model_hub import create\n",
    "model/model_hub.py": "def create(args, output_dim): return 'own', args, output_dim\n",
    "device/__init__.py": "from .device import get_device\n",
    "device/device.py": "def get_device(args): return 'own', args\n",
    "simulation/sp/fedopt/optrepo.py": _OPTREPO,
    "simulation/mpi/fedopt/optrepo.py": _OPTREPO,
    "simulation/mpi/fedopt_seq/optrepo.py": _OPTREPO,
    "cli/modules/run.py": "import click\n"
    "@click.group('run')\n@click.option('--version', '-v')\ndef fedml_run(version):\n    pass\n"
    "@fedml_run.command('list')\n@click.argument('name', required=False)\n"
    "def list_runs(name):\n    click.echo('own list')\n",
}

FakeFedML = Callable[..., Path]
RunPython = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def fake_fedml(tmp_path: Path) -> FakeFedML:
    """Write a fake FedML and return the folder that holds it, to be put on ``PYTHONPATH``."""

    def write(version: str = "0.9.6", missing: str = "") -> Path:
        """``missing`` is a file to leave out, or ``file:name``, a name to leave out of it."""
        file, _, name = missing.partition(":")
        folder = tmp_path / "fake"
        for path, source in _FAKE.items():
            if path == file and not name:
                continue
            target = folder / "fedml" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            body = source.replace("VERSION", version)
            target.write_text(body.replace(name, f"gone{name}") if path == file else body)
        metadata = folder / f"fedml-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: fedml\nVersion: {version}\n")
        return folder

    return write


@pytest.fixture
def run_python(tmp_path: Path) -> RunPython:
    """Run Python in an empty folder; the plugin acts, or not, as for any user who installed it."""

    def run(
        *arguments: str, path: Path | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        variables = {k: v for k, v in os.environ.items() if k != "FEDNNNN_PLUGIN_DISABLE"}
        variables |= environment | ({"PYTHONPATH": str(path)} if path else {})
        folder = tmp_path / "work"
        folder.mkdir(exist_ok=True)
        return subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            cwd=folder,
            env=variables,
            timeout=600,
            check=False,
        )

    return run


@dataclass(frozen=True)
class Ended:
    """How a script ended: negative for a signal, as in ``subprocess``."""

    returncode: int
    stdout: str
    stderr: str


class Script:
    """A FedML script that runs, in a process group of its own."""

    def __init__(self, scripts: "Scripts", pid: int, screen: Path) -> None:
        self.pid, self._scripts, self._screen = pid, scripts, screen

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self) -> Ended:
        status = self._scripts.ask({"wait": self.pid})
        return Ended(status, *(self._screen.with_suffix(f".{n}").read_text() for n in ("out", "err")))


class Scripts:
    """Starts FedML scripts as users do, but for the seconds of ``import fedml``; see `forks`."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0
        environment = {k: v for k, v in os.environ.items() if k != "FEDNNNN_PLUGIN_DISABLE"}
        environment |= {"HOME": str(folder), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("forks.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def ask(self, request: dict) -> int:
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def start(self, *arguments: str | Path, folder: Path, seconds: int = 240, **env: str) -> Script:
        self._count += 1
        screen = self._folder / f"{self._count}.out"
        request = {
            "arguments": list(map(str, arguments)),
            "folder": str(folder),
            "environment": {"HOME": str(folder)} | env,
            "screen": str(screen.with_suffix("")),
            "seconds": seconds,
        }
        return Script(self, self.ask(request), screen)

    def run(self, *arguments: str | Path, **options) -> Ended:
        return self.start(*arguments, **options).wait()

    def close(self) -> None:
        self._process.communicate(timeout=30)


@pytest.fixture(scope="session")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scripts]:
    scripts = Scripts(tmp_path_factory.mktemp("screens"))
    yield scripts
    scripts.close()
