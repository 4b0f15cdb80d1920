"""Runs to disturb."""

import json
from collections.abc import Callable
from typing import Any

import pytest

#: Rounds of some 15 ms: 3 of 20 clients, one epoch, a checkpoint in each.
QUICK = {
    **{"train_args.client_num_per_round": 3, "train_args.epochs": 1, "train_args.comm_round": 3},
    **{"train_args.checkpoint_every": 1, "device_args.using_gpu": False},
}


@pytest.fixture(scope="session")
def quick() -> Callable[..., list[str]]:
    """The arguments of a quick run; keywords are its ``train_args``."""

    def arguments(output: object, *more: str, **keys: Any) -> list[str]:
        settings = QUICK | {k if "." in k else f"train_args.{k}": v for k, v in keys.items()}
        sets = [f"--set={key}={json.dumps(value)}" for key, value in settings.items()]
        return ["run", "digits_noniid_b_fednnnn", "--output", str(output), *sets, *more]

    return arguments
