"""FedNNNN, norm-normalised federated learning (Nagura, Bian, Sato 2020), as a FedML plugin.

Importing the package imports neither FedML nor torch: each public name loads its module on first
use.
"""

__version__ = "0.1.0"

_HOMES = {
    "UpdateAccumulator": "server.average",
    "FedNNNNAggregator": "fedml.aggregator",
    "FedNNNNClientTrainer": "fedml.trainer",
    "NWDARecorder": "engine.recorder",
    "partition": "data.partition",
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
    "partition",
    "register",
]


def __getattr__(name: str) -> object:
    from importlib import import_module

    if home := _HOMES.get(name):
        value = getattr(import_module(f"{__name__}.{home}"), name)
    elif not name.startswith("_") and name in (
        rules := import_module(f"{__name__}.server.rules").RULES
    ):
        value = rules[name].optimizer
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
