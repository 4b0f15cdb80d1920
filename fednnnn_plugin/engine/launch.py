"""From a recipe alone to a run: its data and model, on the device that it asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from fednnnn_plugin.data.federated import DataSpec, FederatedData, load_federated
from fednnnn_plugin.engine.device import choose_device, visible_gpus
from fednnnn_plugin.engine.folder import Mode, RunFolder
from fednnnn_plugin.engine.gpu_mapping import gpu_of_rank, parse_mapping, read_mapping
from fednnnn_plugin.engine.keeper import OnRound
from fednnnn_plugin.engine.launcher import launched_ranks
from fednnnn_plugin.engine.model_check import check_model
from fednnnn_plugin.engine.mpi import world
from fednnnn_plugin.engine.ranks import Ranks, Solo
from fednnnn_plugin.engine.run import run_federation
from fednnnn_plugin.engine.summary import Summary
from fednnnn_plugin.engine.tracking import Follower
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.models import create_model
from fednnnn_plugin.recipe import Recipe


def data_spec(recipe: Recipe, *, allow_code: bool = False) -> DataSpec:
    """Return what the recipe says of its data.

    Args:
        recipe: the settings.
        allow_code: the user, not the recipe, lets a dataset ``module:function`` run.
    """
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
        validation_fraction=data.validation_fraction,
        data_dir=None if data.data_dir is None else Path(data.data_dir).expanduser(),
        image_size=data.image_size,
        test_fraction=data.test_fraction,
        allow_code=allow_code,
    )


def choose_ranks(backend: str | None) -> Ranks:
    """Return the processes of this run: MPI's under ``mpirun``, else this one alone.

    Args:
        backend: ``"sp"`` or ``"MPI"`` where it was asked for.

    Raises:
        UserError: MPI without mpi4py: N processes would each run alone.
    """
    launched = launched_ranks()
    if backend == "sp" and launched > 1:
        raise UserError(f"--backend sp: {launched} processes were launched: start one, or use MPI")
    if backend == "MPI" or launched > 1:
        return world()
    return Solo()


def rank_device(recipe: Recipe, ranks: Ranks) -> torch.device:
    """Return the device of this rank: the mapped GPU, the only GPU asked for, or the CPU.

    Several ranks without a mapping take the visible GPUs of their machine in turn.
    """
    settings = recipe.device_args
    gpu = settings.gpu_id
    if settings.wants_gpu and settings.gpu_util_parse is not None:
        mapping = parse_mapping(settings.gpu_util_parse)
        gpu = gpu_of_rank(mapping, ranks.rank, ranks.size, "device_args.gpu_util_parse")
    elif settings.wants_gpu and settings.gpu_mapping_file is not None:
        path = Path(settings.gpu_mapping_file).expanduser()
        mapping = read_mapping(path, settings.gpu_mapping_key)
        gpu = gpu_of_rank(mapping, ranks.rank, ranks.size, "device_args.gpu_mapping_file")
    elif ranks.size > 1 and (visible := visible_gpus()):
        gpu = ranks.local_rank % visible
    return choose_device(wants_gpu=settings.wants_gpu, gpu_id=gpu, say=ranks.rank == 0)


def load_data(recipe: Recipe, ranks: Ranks, *, allow_code: bool = False) -> FederatedData:
    """Load a recipe's data; one rank of each machine downloads and decodes, then the others."""
    spec = data_spec(recipe, allow_code=allow_code)
    if ranks.local_rank == 0:
        data = load_federated(spec)
        ranks.wait()
        return data
    ranks.wait()
    return load_federated(replace(spec, download=False))


def run_recipe(
    recipe: Recipe,
    folder: Path,
    mode: Mode = "new",
    *,
    ranks: Ranks | None = None,
    on_round: OnRound | None = None,
    followers: Sequence[Follower] = (),
    allow_code: bool = False,
) -> Summary | None:
    """Run a recipe on these ranks; see :func:`~fednnnn_plugin.engine.run.run_federation`.

    ``allow_code`` lets a dataset ``module:function`` run.
    """
    ranks = ranks or Solo()
    if ranks.rank == 0:
        RunFolder(folder).refuse_a_run(mode)  # before anything is downloaded
    data = load_data(recipe, ranks, allow_code=allow_code)
    name, seed = recipe.model_args.model, recipe.common_args.random_seed
    model = create_model(name, seed, data.num_classes)
    check_model(model, name, data, recipe.train_args.batch_size)
    return run_federation(
        recipe,
        model=model,
        data=data,
        device=rank_device(recipe, ranks),
        folder=folder,
        mode=mode,
        ranks=ranks,
        on_round=on_round,
        followers=followers,
    )
