"""A silo's server anew, images, and scripts that start at once."""

import os
import signal
from collections.abc import Callable
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace

import fedml
import pytest
import torch
from fedml.core.dp.fedml_differential_privacy import FedMLDifferentialPrivacy
from fedml.core.security.fedml_attacker import FedMLAttacker
from fedml.core.security.fedml_defender import FedMLDefender
from torch import nn

import fednnnn_plugin as fp
from fednnnn_plugin.data.federated import FederatedData

from ..support.processes import Ended
from .forks import begin
from .rounds import net, silo

fp.register()
# As fedml.init does: otherwise FedML's reports look for its platform on the network.
fedml.mlops.pre_setup(SimpleNamespace(using_mlops=False))


#: What switches a kind of FedML's security on, and what names the kind.
SWITCHES = {"enable_defense": "defense_type", "enable_attack": "attack_type"}
SWITCHES["enable_dp"] = "dp_solution_type"


@pytest.fixture
def secured(monkeypatch: pytest.MonkeyPatch) -> Callable[..., fp.FedNNNNAggregator]:
    """Norm-Norm's aggregator under FedML's security settings, on where they are named."""
    monkeypatch.setattr(FedMLAttacker, "_attacker_instance", None)
    monkeypatch.setattr(FedMLDefender, "_defender_instance", None)
    monkeypatch.setattr(FedMLDifferentialPrivacy, "_dp_instance", None)

    def build(model: nn.Module | None = None, **values) -> fp.FedNNNNAggregator:
        torch.manual_seed(0)
        others = {"gamma": None, "process_id": 0, "enable_cuda_rpc": False}
        counts = ("worker_num", "client_num_in_total")
        others |= dict.fromkeys(counts, values.get("client_num_per_round", 2))
        others |= {switch: kind in values for switch, kind in SWITCHES.items()}
        return silo(model or net(), "NormNorm", **others | values)

    return build


@pytest.fixture
def images() -> FederatedData:
    """Three clients' 12, 7 and 10 images of the digits' shape, and 20 to test on."""
    generator = torch.Generator().manual_seed(0)
    return FederatedData(
        torch.randn(29, 1, 8, 8, generator=generator),
        torch.arange(29) % 10,
        torch.randperm(29, generator=generator).split((12, 7, 10)),
        torch.randn(20, 1, 8, 8, generator=generator),
        torch.arange(20) % 10,
        10,
    )


@pytest.fixture
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the engine train one client after another: forks cost more than such rounds."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder; FedML leaves files in the user's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


SECONDS = 240  # that a script may take
_SCREENS = count()


class Script:
    """A script that runs."""

    def __init__(self, forks: Connection, screen: str) -> None:
        self._forks, self._screen, self._pid = forks, screen, forks.recv()

    def send(self, number: signal.Signals) -> None:
        os.kill(self._pid, number)

    def said(self) -> str:
        """What it has said so far."""
        return "".join(Path(f"{self._screen}{n}").read_text() for n in (1, 2))

    def wait(self) -> Ended:
        self._forks.send(self._pid)
        status = self._forks.recv()
        return Ended(status, *(Path(f"{self._screen}{n}").read_text() for n in (1, 2)))


class Scripts:
    """Starts scripts as users do, but for the seconds of slow imports; see `forks`."""

    def __init__(self, plugin: bool, *modules: str) -> None:
        modules += ("fedml.simulation.simulator", "fedml.cross_silo.server.server_initializer")
        self._forks = begin(plugin, *modules, "sklearn.datasets")

    def start(self, *arguments: str | Path, folder: Path, path: str = "") -> Script:
        """Start a script in a folder; ``path`` is one where it looks for packages first."""
        request = {"arguments": list(map(str, arguments)), "folder": str(folder), "path": path}
        screen = f"{folder}/screen-{next(_SCREENS)}-"
        self._forks.send({**request, "screen": screen, "seconds": SECONDS})
        return Script(self._forks, screen)

    def run(self, *arguments: str | Path, folder: Path) -> Ended:
        """Run a script that ends well."""
        ended = self.start(*arguments, folder=folder).wait()
        assert ended.status == 0, ended.stderr
        return ended


# Forked now, before any test has changed this process.
_WITH_PLUGIN = Scripts(
    True,
    *("fednnnn_plugin.assembly.federation", "fednnnn_plugin.fedml.simulator"),
    *("fednnnn_plugin.fedml.client_trainer", "fedml.cli.cli"),
)
_ALONE = Scripts(False)


@pytest.fixture
def scripts() -> Scripts:
    """FedML with the plugin, both imported."""
    return _WITH_PLUGIN


@pytest.fixture
def fedml_alone() -> Scripts:
    """FedML imported as without the plugin: its hook is off."""
    return _ALONE
