"""Run folders and studies as the engine and the tuner write them, with made-up numbers."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
import yaml

plt.switch_backend("Agg")


def recipe(method: str, seed: int, **settings: Any) -> dict[str, Any]:
    """A resolved recipe; every setting by its own name, the rest the paper's."""
    data = {"dataset": "digits", "data_cache_dir": "~/fedml_data", "validation_fraction": 0.0}
    data |= {"partition_method": "n_class", "partition_sizes": "balanced"}
    data |= {"classes_per_client": 2, "power_law_exponent": 1.0, "partition_alpha": 0.5}
    train = {"federated_optimizer": method, "client_weighting": "uniform", "precision": "fp32"}
    train |= {"client_num_in_total": 100, "client_num_per_round": 100, "comm_round": 4}
    train |= {"epochs": 5, "batch_size": 50, "learning_rate": 0.05, "weight_decay": 0.0}
    for key in settings.keys() & {*data, "data_dir", "image_size"}:
        data[key] = settings.pop(key)
    model = {"model": settings.pop("model", f"nnnn_{data['dataset']}")}
    sections = {"common_args": {"random_seed": seed}, "data_args": data, "model_args": model}
    return sections | {"train_args": train | settings}


def round_of(train: dict[str, Any], seed: int, number: int) -> dict[str, Any]:
    """A line of a ``metrics.jsonl``."""
    cohort, left = train["client_num_per_round"], math.exp(-3.0 * number / train["comm_round"])
    client = 1.6 / math.sqrt(number)
    update = client * (1.0 if cohort == 1 else 0.2 + 0.5 * left)
    norms = {"mean_update_norm": update, "mean_client_norm": client}
    norms["server_update_norm"] = 1.5 * update
    line = {"round": number, "test_acc": (0.75 + 0.01 * seed) * (1.0 - left)} | norms
    line |= {"test_loss": 2.3 * left, "served_test_acc": None, "evaluated": "average"}
    line |= {"clients": cohort, "rejected": 0, "degenerate": False, "integrated_norm": 1.5 * number}
    line["client_norms"] = [client * 0.6, client * 0.98, client * 1.9]
    line["seconds"] = {"train": 1.0, "aggregate": 0.1, "evaluate": 0.2}
    line["layers"] = {
        layer: {name: norm * (place + 1) / 10 for name, norm in norms.items()}
        for place, layer in enumerate(("conv1", "conv2", "fc1", "fc2"))
    }
    return line


def bare(line: dict[str, Any], *kept: str) -> None:
    """Leave a round's accuracy alone, of which there is one figure, and what else is ``kept``."""
    for key in line.keys() - {"round", "test_acc", *kept}:
        del line[key]


def curve(*accuracies: float | None) -> Callable[[dict[str, Any]], None]:
    """Make the rounds' accuracies these."""
    return lambda line: line.update(test_acc=accuracies[line["round"] - 1])


@pytest.fixture(autouse=True)
def _figures_closed():
    yield
    plt.close("all")


def maker(folder: Path) -> Callable[..., Path]:
    """What writes run folders: ``make("FedNNNN", seed=1, comm_round=30)``."""

    def make(
        method: str,
        *,
        name: str | None = None,
        seed: int = 0,
        done: int | None = None,
        change: Callable[[dict[str, Any]], Any] = lambda line: None,
        **settings: Any,
    ) -> Path:
        values = recipe(method, seed, **settings)
        train = values["train_args"]
        lines = [round_of(train, seed, number + 1) for number in range(train["comm_round"])][:done]
        for line in lines:
            change(line)
        where = folder / (name or f"{len(list(folder.glob('*'))):02}-{method.lower()}")
        where.mkdir(parents=True)
        (where / "recipe.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
        (where / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        summary = {"rounds": len(lines), "device": "cpu (A, 2 cores)"}
        (where / "summary.json").write_text(json.dumps(summary))
        return where

    return make


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """Write a run folder of a few rounds."""
    return maker(tmp_path / "runs")


STEPS: list[dict[str, Any]] = [
    {"name": "eta", "method": "PaperFedAvg", "rounds": 30, "grid": {"learning_rate": [0.05, 0.1]}},
    {"name": "own", "method": "FedNNNN", "rounds": 30,
     "grid": {"beta": [0.5, 0.6], "gamma": [1e-6, 0.8]}},
]  # fmt: skip
PLAN = {"recipe": "digits", "metric": "best_accuracy", "validation": 1 / 6, "prune": True}
HEAD = (
    "step,method,state,value,best_accuracy,best_round,final_accuracy,final_loss,rounds,folder,"
    "learning_rate,beta,gamma"
)
RATE = "eta,PaperFedAvg,finished,{0},{0},30,0.8,1,30,a,{1},,"
OWN = "own,FedNNNN,finished,{0},{0},30,0.9,1,30,c,,{1},{2}"


def write_study(folder: Path, *trials: str, **plan: Any) -> Path:
    """Write the folder of a study of two steps."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.yaml").write_text(yaml.safe_dump({**PLAN, "steps": STEPS, **plan}))
    (folder / "trials.csv").write_text("\n".join([HEAD, *trials]) + "\n")
    return folder


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A study of two steps, of which the second is not complete."""
    return write_study(
        tmp_path / "study",
        *(RATE.format(0.8, 0.05), RATE.format(0.7, 0.1)),
        *(OWN.format(0.91, 0.5, 1e-6), OWN.format(0.93, 0.6, 1e-6)),
        "own,FedNNNN,pruned,,,,,,9,e,,0.5,0.8",
    )
