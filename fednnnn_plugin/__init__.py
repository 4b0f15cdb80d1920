"""FedNNNN, norm-normalised federated learning (Nagura, Bian, Sato 2020), as a FedML plugin.

Importing the package imports neither FedML nor torch: each public name loads its module on first
use.
"""

__version__ = "0.1.0"

_HOMES = {
    "FedNNNN": "server.optimizers",
    "NormNorm": "server.optimizers",
    "Momentum": "server.optimizers",
    "FedExP": "server.adaptive",
    "FedAdam": "server.adaptive",
    "FedYogi": "server.adaptive",
    "UpdateAccumulator": "server.accumulator",
    "FedNNNNAggregator": "fedml.aggregator",
    "FedNNNNClientTrainer": "fedml.trainer",
    "NWDARecorder": "engine.recorder",
    "figures": "report.figures",
    "partition": "data.partition",
    "read_runs": "report.runs",
    "register": "fedml.hook",
    "UserError": "errors",
}

__all__ = [
    "FedAdam",
    "FedExP",
    "FedNNNN",
    "FedNNNNAggregator",
    "FedNNNNClientTrainer",
    "FedYogi",
    "Momentum",
    "NWDARecorder",
    "NormNorm",
    "UpdateAccumulator",
    "UserError",
    "__version__",
    "figures",
    "partition",
    "read_runs",
    "register",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module = import_module(f"{__name__}.{home}")
    value = getattr(module, name, module)  # figures is a module itself
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
