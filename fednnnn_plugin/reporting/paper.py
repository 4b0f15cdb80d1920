"""What the paper reports, and how a run's settings differ from the paper's."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from fednnnn_plugin.reporting.conditions import value_text

# Tables tab:accuracy, in per cent, one run each, and tab:params2, what each method was given.
_TABLE = pd.read_csv(
    Path(__file__).with_name("paper.csv"), index_col=["dataset", "partition", "method"]
)
PAPER: dict[Any, float] = _TABLE.pop("accuracy").to_dict()
# Table tab:params, and what it leaves to us.
_SETTINGS: dict[str, Any] = dict.fromkeys(("client_num_in_total", "client_num_per_round"), 100)
_SETTINGS |= {"batch_size": 50, "epochs": 5, "learning_rate": 0.05, "classes_per_client": 2}
_SETTINGS |= {"validation_fraction": 0, "client_weighting": "uniform", "precision": "fp32"}
_SETTINGS |= {"max_client_norm": None, "client_optimizer": "sgd", "client_optimizer_args": None}
_SETTINGS |= {"learning_rate_decay": 1, "max_grad_norm": None, "loss": "cross_entropy"}
_SETTINGS |= {"client_sampling": "uniform", "client_availability": None, "holdout": None}
_SETTINGS |= dict.fromkeys(("local_steps", "learning_rate_schedule", "train_transform"))
_SETTINGS |= {"power_law_exponent": 1, "min_samples": 10}
_ONLY_OF = {"classes_per_client": "non-IID", "power_law_exponent": "UB", "min_samples": "UB"}
SETTINGS = {
    "mnist": _SETTINGS | {"model": "nnnn_mnist", "comm_round": 100, "weight_decay": 0},
    "cifar10": _SETTINGS | {"model": "nnnn_cifar10", "comm_round": 250, "weight_decay": 5e-4},
}


def unlike_paper(
    place: tuple[Any, Any, Any], head: Mapping[str, Any], rounds: int, untested: int
) -> str:
    """The settings of a run that are not the paper's, whose values stand in brackets.

    ``place`` is the data set, the partition and the method, of :data:`PAPER`. A key that is not on
    record, or null, counts as the paper's.
    """
    dataset, partition, _ = place
    wanted, said = SETTINGS[dataset] | _TABLE.loc[place].dropna().to_dict(), []
    for key, paper in wanted.items():
        ours = paper if pd.isna(head.get(key)) else head[key]
        if ours != paper and _ONLY_OF.get(key, "") in partition:
            said.append(f"{key} {value_text(ours)} ({value_text(paper)})")
    if rounds < wanted["comm_round"] and head.get("comm_round") == wanted["comm_round"]:
        said.append(f"{rounds} rounds ({wanted['comm_round']})")
    if untested:
        said.append(f"{untested} rounds not tested (0)")
    return ", ".join(said)
