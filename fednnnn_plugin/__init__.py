"""FedNNNN, norm-normalised federated learning (Nagura, Bian, Sato 2020), as a FedML plugin.

Importing the package imports neither FedML nor torch: each public name loads its module on first
use. The server rules in :data:`fednnnn_plugin.server.rules.RULES` are public by their names. What
is a FedML class needs FedML, and is listed where that is installed.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fednnnn_plugin.assembly.load_model import load_model as load_model
    from fednnnn_plugin.assembly.run import Run as Run
    from fednnnn_plugin.assembly.run import run as run
    from fednnnn_plugin.client.method import ClientMethod as ClientMethod
    from fednnnn_plugin.data.partition import partition as partition
    from fednnnn_plugin.errors import RunError as RunError
    from fednnnn_plugin.errors import UserError as UserError
    from fednnnn_plugin.fedml.aggregator import FedNNNNAggregator as FedNNNNAggregator
    from fednnnn_plugin.fedml.client_trainer import FedNNNNClientTrainer as FedNNNNClientTrainer
    from fednnnn_plugin.fedml.hook import register as register
    from fednnnn_plugin.followers.follower import Follower as Follower
    from fednnnn_plugin.quantities import RoundRecord as RoundRecord
    from fednnnn_plugin.reporting import figures as figures
    from fednnnn_plugin.reporting.build import report as report
    from fednnnn_plugin.reporting.frames import layer_norms as layer_norms
    from fednnnn_plugin.reporting.frames import read_runs as read_runs
    from fednnnn_plugin.reporting.frames import summary as summary
    from fednnnn_plugin.reporting.result_tables import class_results as class_results
    from fednnnn_plugin.reporting.result_tables import client_results as client_results
    from fednnnn_plugin.run_folder.nwda import NWDARecorder as NWDARecorder
    from fednnnn_plugin.server.accumulator import UpdateAccumulator as UpdateAccumulator
    from fednnnn_plugin.server.rules import rule as rule
    from fednnnn_plugin.server.rules.fedadagrad import FedAdagrad as FedAdagrad
    from fednnnn_plugin.server.rules.fedadam import FedAdam as FedAdam
    from fednnnn_plugin.server.rules.fedavg import PaperFedAvg as PaperFedAvg
    from fednnnn_plugin.server.rules.fedavgm import FedAvgM as FedAvgM
    from fednnnn_plugin.server.rules.feddyn import FedDyn as FedDyn
    from fednnnn_plugin.server.rules.fedexp import FedExP as FedExP
    from fednnnn_plugin.server.rules.fednnnn import FedNNNN as FedNNNN
    from fednnnn_plugin.server.rules.fedprox import PaperFedProx as PaperFedProx
    from fednnnn_plugin.server.rules.fedyogi import FedYogi as FedYogi
    from fednnnn_plugin.server.rules.momentum import Momentum as Momentum
    from fednnnn_plugin.server.rules.norm_norm import NormNorm as NormNorm
    from fednnnn_plugin.tuning.tuning import Tuning as Tuning
    from fednnnn_plugin.tuning.tuning import tune as tune

__version__ = "0.2.0.dev0"

_FEDML_CLASSES = {
    "FedNNNNAggregator": "fedml.aggregator",
    "FedNNNNClientTrainer": "fedml.client_trainer",
}
_HOMES = {
    "ClientMethod": "client.method",
    "Follower": "followers.follower",
    "NWDARecorder": "run_folder.nwda",
    "Run": "assembly.run",
    "RoundRecord": "quantities",
    "RunError": "errors",
    "Tuning": "tuning.tuning",
    "UpdateAccumulator": "server.accumulator",
    "UserError": "errors",
    "class_results": "reporting.result_tables",
    "client_results": "reporting.result_tables",
    "layer_norms": "reporting.frames",
    "load_model": "assembly.load_model",
    "partition": "data.partition",
    "read_runs": "reporting.frames",
    "register": "fedml.hook",
    "report": "reporting.build",
    "rule": "server.rules",
    "run": "assembly.run",
    "summary": "reporting.frames",
    "tune": "tuning.tuning",
}


def _public(name: str) -> object:
    if name == "__all__":
        return __dir__()
    value: object = None
    if name == "figures":
        value = import_module(f"{__name__}.reporting.figures")
    elif name in _FEDML_CLASSES:
        from fednnnn_plugin.fedml.hook import require

        require(name)
        value = getattr(import_module(f"{__name__}.{_FEDML_CLASSES[name]}"), name)
    elif name in _HOMES:
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    elif name[:1].isupper():
        value = _optimizers().get(name)
    if value is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


if not TYPE_CHECKING:  # to mypy a module with ``__getattr__`` has every name
    __getattr__ = _public


def __dir__() -> list[str]:
    from fednnnn_plugin.fedml.hook import why_unusable

    fedml = () if why_unusable() else _FEDML_CLASSES
    return sorted(["__version__", "figures", *_HOMES, *_optimizers(), *fedml])


def _optimizers() -> dict[str, object]:
    from fednnnn_plugin.server.rules import RULES

    return {name: rule.optimizer for name, rule in RULES.items() if name.isidentifier()}
