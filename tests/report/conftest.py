"""Run folders as the engine writes them, with made-up numbers."""

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
import yaml

plt.switch_backend("Agg")

# Made-up learning curves: accuracy reached, rounds to get there, N/E at the end.
CURVES = {"PaperFedAvg": (0.70, 0.30, 0.14), "FedNNNN": (0.79, 0.10, 0.30)}
LAYERS = ("conv1", "conv2", "fc1", "fc2")
CIFAR10_LAYERS = ("conv11", "bn11", "conv12", "conv31", "bn31", "conv32", "fc1", "fc2", "fc3")


def recipe(method: str, **settings: Any) -> dict[str, Any]:
    """A resolved recipe; every setting by its own name, the rest the paper's."""
    dataset = settings.pop("dataset", "digits")
    data = {
        "dataset": dataset,
        "data_cache_dir": "~/fedml_data",
        "partition_method": "n_class",
        "partition_sizes": "balanced",
        "classes_per_client": 2,
        "power_law_exponent": 1.0,
        "partition_alpha": 0.5,
        "validation_fraction": 0.0,
    }
    train = {
        "federated_optimizer": method,
        "client_weighting": "uniform",
        "client_num_in_total": 100,
        "client_num_per_round": 100,
        "comm_round": 100,
        "epochs": 5,
        "batch_size": 50,
        "learning_rate": 0.05,
        "weight_decay": 0.0,
        "precision": "fp32",
    }
    of_data = {*data, "data_dir", "image_size"}
    seed, model = settings.pop("seed", 0), settings.pop("model", f"nnnn_{dataset}")
    data |= {key: settings.pop(key) for key in list(settings) if key in of_data}
    return {
        "common_args": {"random_seed": seed},
        "data_args": data,
        "model_args": {"model": model},
        "train_args": train | settings,
    }


def rounds_of(settings: dict[str, Any], rounds: int) -> list[dict[str, Any]]:
    """The lines of a ``metrics.jsonl`` that learns as the method's curve says."""
    train = settings["train_args"]
    m = train["client_num_per_round"]
    top, pace, agreement = CURVES.get(train["federated_optimizer"], (0.75, 0.2, 0.2))
    draw, moved = random.Random(f"{settings}"), 0.0
    lines = []
    for index in range(1, rounds + 1):
        learnt = 1.0 - math.exp(-index / (pace * 0.6 * rounds))
        accuracy = min(1.0, max(0.0, 0.1 + (top - 0.1) * learnt + draw.gauss(0.0, 0.012)))
        client = 1.6 / math.sqrt(1.0 + 8.0 * index / rounds) * math.exp(draw.gauss(0.0, 0.05))
        ratio = 1.0 if m == 1 else agreement + 0.5 * math.exp(-10.0 * index / rounds)
        norms = {"mean_update_norm": client * ratio, "mean_client_norm": client}
        norms["server_update_norm"] = client * ratio * 1.5
        moved += norms["server_update_norm"]
        lines.append(
            {
                "round": index,
                "test_acc": accuracy,
                "test_loss": 2.3 * (1 - accuracy),
                "served_test_acc": None,
                **norms,
                "integrated_norm": moved,
                "client_norms": [client * 0.6, client * 0.98, client * 1.9],
                "layers": {
                    module: {name: norm * (place + 1) / 10 for name, norm in norms.items()}
                    for place, module in enumerate(
                        CIFAR10_LAYERS if settings["data_args"]["dataset"] == "cifar10" else LAYERS
                    )
                },
                "clients": m,
                "rejected": 0,
                "degenerate": False,
                "seconds": {"train": 1.0, "aggregate": 0.1, "evaluate": 0.2},
                "evaluated": "average",
            }
        )
    return lines


def bare(line: dict[str, Any], *kept: str) -> None:
    """Leave a round's accuracy alone, of which there is one figure, and what else is ``kept``."""
    for key in line.keys() - {"round", "test_acc", *kept}:
        del line[key]


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
        done: int | None = None,
        finished: bool = True,
        change: Callable[[dict[str, Any]], Any] = lambda line: None,
        **settings: Any,
    ) -> Path:
        values = recipe(method, **{"comm_round": 4} | settings)
        lines = rounds_of(values, values["train_args"]["comm_round"])[:done]
        for line in lines:
            change(line)
        number = len(list(folder.glob("*")))
        where = folder / (name or f"{number:02}-{method.lower()}")
        where.mkdir(parents=True)
        (where / "recipe.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
        (where / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        if finished:
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
    folder.mkdir(exist_ok=True)
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
