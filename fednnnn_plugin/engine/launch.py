"""From a recipe alone to a run: the data and model that it names, on the device that it asks for."""

from __future__ import annotations

from pathlib import Path

from fednnnn_plugin.data.federated import DataSpec, FederatedData, load_federated
from fednnnn_plugin.engine.device import choose_device
from fednnnn_plugin.engine.folder import Mode
from fednnnn_plugin.engine.ranks import Ranks, Solo
from fednnnn_plugin.engine.run import OnRound, run_federation
from fednnnn_plugin.engine.summary import Summary
from fednnnn_plugin.models import create_model
from fednnnn_plugin.recipe import Recipe


def data_spec(recipe: Recipe) -> DataSpec:
    """Return what the recipe says of its data."""
    data = recipe.data_args
    return DataSpec(
        dataset=data.dataset,
        data_cache_dir=data.cache_dir,
        download=data.download,
        partition_method=data.partition_method,
        partition_sizes=data.partition_sizes,
        classes_per_client=data.classes_per_client,
        power_law_exponent=data.power_law_exponent,
        min_samples=data.min_samples,
        num_clients=recipe.train_args.client_num_in_total,
        seed=recipe.common_args.random_seed,
    )


def run_recipe(
    recipe: Recipe, folder: Path, mode: Mode = "new", on_round: OnRound | None = None
) -> Summary | None:
    """Run a recipe in this process; see :func:`~fednnnn_plugin.engine.run.run_federation`."""
    ranks: Ranks = Solo()
    device = choose_device(
        wants_gpu=recipe.device_args.wants_gpu, gpu_id=recipe.device_args.gpu_id
    )
    data: FederatedData = load_federated(data_spec(recipe))
    return run_federation(
        recipe,
        model=create_model(recipe.model_args.model, recipe.common_args.random_seed),
        data=data,
        device=device,
        folder=folder,
        mode=mode,
        ranks=ranks,
        on_round=on_round,
    )
