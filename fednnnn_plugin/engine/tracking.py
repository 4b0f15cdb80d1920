"""The scalars of a round, for whoever follows a run live."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from fednnnn_plugin.engine.records import RoundRecord
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.recipe import Recipe

_log = logging.getLogger(__name__)

#: Takes a round's scalars and its number.
Log = Callable[[dict[str, float], int], None]
#: Opens a log for a run folder.
Follower = Callable[[Path], AbstractContextManager[Log]]
_NORMS = ("mean_update_norm", "mean_client_norm", "server_update_norm")


def scalars(record: RoundRecord) -> dict[str, float]:
    """Return a round's numbers by name: FedML's ``Test/Acc`` and ``Test/Loss``, and the norms."""
    named = {
        "Test/Acc": record.test_acc,
        "Test/Loss": record.test_loss,
        "Test/ServedAcc": record.served_test_acc,
        "NWDA/integrated_norm": record.integrated_norm,
        "NWDA/rejected": record.rejected,
        **{f"NWDA/{name}": getattr(record, name) for name in _NORMS},
        **{
            f"NWDA/{module}/{name}": getattr(norms, name)
            for module, norms in record.layers.items()
            for name in _NORMS
        },
    }
    return {name: float(value) for name, value in named.items() if value is not None}


def tensorboard() -> Follower:
    """Write event files for TensorBoard into ``tensorboard/`` of the run folder.

    Raises:
        UserError: tensorboardX is not installed.
    """
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise UserError(
            "--tensorboard: tensorboardX is not installed: install fednnnn-plugin[tensorboard]"
        ) from None

    @contextmanager
    def follow(folder: Path) -> Iterator[Log]:
        with SummaryWriter(str(folder / "tensorboard")) as writer:

            def log(values: dict[str, float], round_number: int) -> None:
                for name, value in values.items():
                    writer.add_scalar(name, value, round_number)
                writer.flush()

            yield log

    return follow


def weights_and_biases(recipe: Recipe) -> Follower:
    """Log to Weights & Biases, as FedML's ``tracking_args`` say.

    It is the run that ``fedml.init`` has begun, or one of its own. ``WANDB_MODE=offline`` keeps it
    off the network, as ever.
    """

    @contextmanager
    def follow(folder: Path) -> Iterator[Log]:
        import wandb

        settings = recipe.tracking_args
        begun = wandb.run
        run: Any = begun or wandb.init(
            project=settings.wandb_project,
            entity=settings.wandb_entity,
            name=settings.run_name or folder.name,
            config=recipe.model_dump(mode="json", exclude={"tracking_args"}),
            dir=str(folder),
        )

        def log(values: dict[str, float], round_number: int) -> None:
            run.log({**values, "round": round_number})

        try:
            yield log
        finally:
            if begun is None:
                run.finish()

    return follow


@contextmanager
def fedml_mlops(folder: Path) -> Iterator[Log]:
    """Log to ``fedml.mlops``, for ``using_mlops: true``, until it fails once.

    FedML 0.9.6 raises while it holds a lock of its own: a second call would wait for ever.
    """
    import fedml

    del folder  # FedML keeps the numbers elsewhere
    working = True

    def log(values: dict[str, float], round_number: int) -> None:
        nonlocal working
        if not working:
            return
        try:
            fedml.mlops.log({**values, "round": round_number})
        except Exception as error:  # a service that is down must not end the run
            working = False
            _log.warning(
                "round %d: fedml.mlops.log failed, and gets no more of this run: %s",
                round_number,
                error,
            )

    yield log


def followers(recipe: Recipe) -> list[Follower]:
    """Return what the recipe asks for."""
    asked = [weights_and_biases(recipe)] if recipe.tracking_args.enable_wandb else []
    return [*asked, fedml_mlops] if recipe.common_args.using_mlops else asked
