"""Real processes with the plugin installed, and a package of FedML's shape that loads at once."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
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
    "from fedml.core import mlops\nfrom fedml.runner import FedMLRunner\n"
    "def _manage_profiling_args(args): pass\n",
    "runner.py": "class FedMLRunner:\n"
    "    def __init__(self, args, *rest): self.runner = self._init_simulation_runner(args, *rest)\n"
    "    def _init_simulation_runner(self, args, *rest): return ('own', args, *rest)\n"
    + "".join(
        f"    def _init_{kind}_runner(self, args, *rest): return ('own', args, *rest)\n"
        for kind in ("cross_silo", "cheetah", "model_serving", "cross_device")
    ),
    "core/mlops/__init__.py": "def pre_setup(args): pass\n",
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
        before = os.environ.get("PYTHONPATH", "")
        variables |= environment | ({"PYTHONPATH": f"{path}{os.pathsep}{before}"} if path else {})
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
        return Ended(
            status, *(self._screen.with_suffix(f".{n}").read_text() for n in ("out", "err"))
        )


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

    def federate(self, folder: Path, config: str, *, server: str, client: str) -> list[Script]:
        """Start a server and as many clients as ``grpc_ipconfig.csv`` has, which it waits for."""
        ranks = len((folder / "grpc_ipconfig.csv").read_text().splitlines()) - 1

        def start(rank: int, script: str, role: str) -> Script:
            words = (script, "--cf", config, "--rank", rank, "--role", role)
            return self.start(*map(str, words), folder=folder)

        started = [start(0, server, "server")]
        deadline = time.monotonic() + 60
        while not _listens(_server_port(folder)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return started + [start(rank, client, "client") for rank in range(1, ranks)]

    def close(self) -> None:
        self._process.communicate(timeout=30)


def _server_port(folder: Path) -> int:
    """The port that a folder's ``grpc_ipconfig.csv`` gives the server."""
    return int((folder / "grpc_ipconfig.csv").read_text().splitlines()[1].split(",")[3])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _free_ports(count: int) -> list[int]:
    """Ports that are free, and stay so: none of those that the kernel gives to connections."""
    found: list[int] = []
    for port in random.sample(range(20_000, 32_000), 1_000):
        with socket.socket() as free:
            try:
                free.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            break
    return found


@pytest.fixture
def grpc_addresses() -> Callable[[Path, int], None]:
    """Write a ``grpc_ipconfig.csv`` of a server and some clients on free ports."""

    def write(folder: Path, clients: int) -> None:
        rows = ["eid,rank,grpc_server_ip,grpc_server_port,ingress_ip"]
        ports = enumerate(_free_ports(clients + 1))
        rows += [f"{rank},{rank},127.0.0.1,{port}," for rank, port in ports]
        (folder / "grpc_ipconfig.csv").write_text("\n".join(rows) + "\n")

    return write


@pytest.fixture(scope="session")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scripts]:
    scripts = Scripts(tmp_path_factory.mktemp("screens"))
    yield scripts
    scripts.close()
