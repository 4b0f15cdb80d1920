"""What the paper reports, typed in: table ``tab:accuracy`` and the settings it rests on.

The paper ran every experiment once and gives one figure each, in per cent to one decimal; it does
not say whether that is the best or the last round's.
"""

from collections.abc import Mapping
from types import MappingProxyType

DATASETS = ("mnist", "cifar10")
METHODS = ("FedAvg", "FedProx", "Norm-Norm", "Momentum", "FedNNNN")
CONDITIONS = (("IID", "B"), ("non-IID", "B"), ("IID", "UB"), ("non-IID", "UB"))

# Table "Summary of Accuracy Results" (tab:accuracy): method -> MNIST and CIFAR-10 by condition.
_TABLE = """
FedAvg     99.0 81.3  98.2 72.6  99.1 83.5  93.5 56.6
FedProx    99.0 81.4  98.1 74.2  99.1 83.2  87.9 55.6
Norm-Norm  99.1 81.2  99.0 76.7  99.2 83.3  97.1 55.5
Momentum   99.1 83.1  99.2 74.3  99.1 84.2  96.9 62.0
FedNNNN    99.2 84.7  99.1 76.7  99.2 84.0  98.9 61.9
"""


def _read_table() -> dict[tuple[str, str, str, str], float]:
    figures = {}
    for line in _TABLE.split("\n"):
        if line:
            method, *row = line.split()
            columns = [(data, *condition) for condition in CONDITIONS for data in DATASETS]
            for column, figure in zip(columns, row, strict=True):
                figures[(*column, method)] = float(figure)
    return figures


# (dataset, "IID" or "non-IID", "B" or "UB", method) -> accuracy in per cent.
ACCURACY: Mapping[tuple[str, str, str, str], float] = MappingProxyType(_read_table())

# Table tab:params, with m = C K clients a round; non-IID clients hold two classes.
SETTINGS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "mnist": {
            "comm_round": 100,
            "client_num_in_total": 100,
            "client_num_per_round": 100,
            "batch_size": 50,
            "epochs": 5,
            "learning_rate": 0.05,
            "weight_decay": 0.0,
        },
        "cifar10": {
            "comm_round": 250,
            "client_num_in_total": 100,
            "client_num_per_round": 100,
            "batch_size": 50,
            "epochs": 5,
            "learning_rate": 0.05,
            "weight_decay": 5e-4,
        },
    }
)
CLASSES_PER_CLIENT = 2
