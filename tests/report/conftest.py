"""Run folders as the engine writes them, with made-up numbers."""

import json
import math
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

MODULES = {
    "mnist": ("conv1", "conv2", "fc1", "fc2"),
    "cifar10": (
        *("conv11", "bn11", "conv12", "bn12", "conv21", "bn21", "conv22", "bn22"),
        *("conv31", "bn31", "conv32", "bn32", "fc1", "fc2", "fc3"),
    ),
    "digits": ("conv1", "conv2", "fc1", "fc2"),
}
# Made-up learning curves: accuracy reached, rounds to get there, N/E at the end.
CURVES = {
    "PaperFedAvg": (0.70, 0.30, 0.14),
    "PaperFedProx": (0.71, 0.28, 0.15),
    "NormNorm": (0.75, 0.16, 0.22),
    "Momentum": (0.74, 0.18, 0.20),
    "FedNNNN": (0.79, 0.10, 0.30),
}


def recipe(
    method: str,
    *,
    dataset: str = "digits",
    partition: str = "n_class",
    sizes: str = "balanced",
    clients: int = 20,
    rounds: int = 30,
    seed: int = 0,
    **train: Any,
) -> dict[str, Any]:
    """A resolved recipe."""
    return {
        "common_args": {"training_type": "simulation", "random_seed": seed},
        "data_args": {
            "dataset": dataset,
            "data_cache_dir": "~/fedml_data",
            "partition_method": partition,
            "partition_sizes": sizes,
            "classes_per_client": 2,
            "power_law_exponent": 1.0,
        },
        "model_args": {"model": f"nnnn_{dataset}"},
        "train_args": {
            "federated_optimizer": method,
            "client_num_in_total": clients,
            "client_num_per_round": clients,
            "comm_round": rounds,
            "epochs": 5,
            "batch_size": 50,
            "learning_rate": 0.05,
            "weight_decay": 0.0,
            **train,
        },
        "validation_args": {"frequency_of_the_test": 1, "test_served": True},
        "comm_args": {"backend": "sp"},
    }


def rounds_of(settings: Mapping[str, Any], rounds: int) -> list[dict[str, Any]]:
    """The lines of a ``metrics.jsonl`` that learns as the method's curve says."""
    train = settings["train_args"]
    m = train["client_num_per_round"]
    top, pace, agreement = CURVES[train["federated_optimizer"]]
    agreement = 1.0 if m == 1 else agreement
    draw = random.Random(f"{settings}")
    integrated, lines = 0.0, []
    for index in range(1, rounds + 1):
        learnt = 1.0 - math.exp(-index / (pace * 0.6 * rounds))
        noise = draw.gauss(0.0, 0.012) * (2.0 - learnt)
        accuracy = min(1.0, max(0.0, 0.1 + (top - 0.1) * learnt + noise))
        client = 1.6 / math.sqrt(1.0 + 8.0 * index / rounds) * math.exp(draw.gauss(0.0, 0.05))
        ratio = agreement + (1.0 - agreement) * 0.5 * math.exp(-index / (0.1 * rounds))
        scale = 1.0 if m == 1 else 0.45 + draw.random() * 0.05
        norms = {
            "mean_update_norm": client * ratio,
            "mean_client_norm": client,
            "server_update_norm": client * (ratio + (1 - ratio) * scale * agreement * 2),
        }
        integrated += norms["server_update_norm"]
        modules = MODULES[settings["data_args"]["dataset"]]
        lines.append(
            {
                "round": index,
                "test_acc": accuracy,
                "test_loss": 2.3 * (1 - accuracy),
                "served_test_acc": accuracy * (0.2 + 0.2 * draw.random()),
                **norms,
                "integrated_norm": integrated,
                "client_norms": [client * 0.6, client * 0.98, client * 1.9],
                "layers": {
                    module: {
                        name: norm * (position + 1) / 10 * math.exp(draw.gauss(0.0, 0.05))
                        for name, norm in norms.items()
                    }
                    for position, module in enumerate(modules)
                },
                "clients": m,
                "rejected": 0,
                "degenerate": False,
                "seconds": {"train": 1.0, "aggregate": 0.1, "evaluate": 0.2},
            }
        )
    return lines


def write_run(
    folder: Path,
    settings: Mapping[str, Any],
    lines: list[dict[str, Any]],
    *,
    finished: bool = True,
) -> Path:
    """Write a run folder."""
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(dict(settings), sort_keys=False))
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text)
    if finished:
        tested = [line for line in lines if line["test_acc"] is not None]
        best = max(tested, key=lambda line: line["test_acc"])
        summary = {
            "recipe": folder.name,
            "seed": settings["common_args"]["random_seed"],
            "rounds": len(lines),
            "best_test_acc": best["test_acc"],
            "best_round": best["round"],
            "final_test_acc": tested[-1]["test_acc"],
            "backend": "sp",
            "ranks": 1,
            "device": "cpu",
            "wall_seconds": 12.5,
            "versions": {"fednnnn-plugin": "0.1.0", "torch": "2.9.0"},
        }
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


MakeRun = Callable[..., Path]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Write ``runs/<name>`` for a method: ``make_run("FedNNNN", seed=1, rounds=30)``."""

    def make(
        method: str,
        *,
        name: str | None = None,
        done: int | None = None,
        finished: bool = True,
        under: str = "runs",
        **settings: Any,
    ) -> Path:
        values = recipe(method, **settings)
        seed = values["common_args"]["random_seed"]
        data = values["data_args"]
        plain = f"{data['dataset']}_{data['partition_method']}_{data['partition_sizes']}_{method}"
        lines = rounds_of(values, values["train_args"]["comm_round"])
        folder = tmp_path / under / (name or f"{plain.lower()}-seed{seed}")
        return write_run(folder, values, lines[:done], finished=finished)

    return make


@pytest.fixture
def two_methods(make_run: MakeRun) -> list[Path]:
    """The quick start's runs: FedAvg and FedNNNN on digits, two seeds each."""
    return [make_run(method, seed=seed) for method in ("PaperFedAvg", "FedNNNN") for seed in (0, 1)]
