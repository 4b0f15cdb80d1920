"""One run: from a recipe, a model and data to a run folder."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.engine.batches import ClientBatches, LoaderBatches, LoaderData, TensorBatches
from fednnnn_plugin.engine.cohort import BatchedTraining, ClientTraining, Cohort, SGDTraining
from fednnnn_plugin.engine.device import side_by_side
from fednnnn_plugin.engine.evaluation import Evaluation
from fednnnn_plugin.engine.federation import Federation
from fednnnn_plugin.engine.folder import Mode, RunFolder
from fednnnn_plugin.engine.foreign import ForeignTrainer, ForeignTraining
from fednnnn_plugin.engine.grouping import group_size
from fednnnn_plugin.engine.keeper import OnRound, RunKeeper
from fednnnn_plugin.engine.logfile import logged_to
from fednnnn_plugin.engine.numerics import numerics
from fednnnn_plugin.engine.ranks import Ranks, Solo
from fednnnn_plugin.engine.settings import local_sgd, schedule, server_rule
from fednnnn_plugin.engine.state import State, aliases, named_tensors, trainable_names
from fednnnn_plugin.engine.summary import Summary
from fednnnn_plugin.engine.tracking import Follower
from fednnnn_plugin.models import MODELS
from fednnnn_plugin.recipe import Recipe
from fednnnn_plugin.server.server import Server


def run_federation(
    recipe: Recipe,
    *,
    model: nn.Module,
    data: FederatedData | LoaderData,
    device: torch.device,
    folder: Path,
    mode: Mode = "new",
    trainer: ForeignTrainer | None = None,
    ranks: Ranks | None = None,
    on_round: OnRound | None = None,
    followers: Sequence[Follower] = (),
) -> Summary | None:
    """Run a recipe's federation and keep it in a run folder.

    Our networks on staged tensors train several clients side by side; a model, data or trainer
    that we do not know trains one client at a time, with the global generators seeded for it.

    Args:
        recipe: the settings; its data and model sections are the caller's to follow.
        model: ``w_0``; it is left as it is.
        data: clients and test set.
        device: where to train.
        folder: the run folder.
        mode: ``"resume"`` goes on from the newest whole checkpoint (from the start if there is
            none); ``"overwrite"`` replaces a run; ``"new"`` refuses to.
        trainer: replaces the engine's local training.
        ranks: the processes that share the clients; this one alone by default.
        on_round: called with each round's record, on rank 0.
        followers: opened for the run folder, on rank 0; they get each round's scalars.

    Returns:
        The summary on rank 0; None elsewhere, and where a resumed run was finished already.

    Raises:
        UserError: settings that do not fit the data or the folder.
        RunError: the run cannot go on; its last checkpoint is in place.
    """
    ranks = ranks or Solo()
    sgd = local_sgd(recipe)
    model = copy.deepcopy(model).to(device, sgd.dtype)
    known = type(model) in MODELS.values() and isinstance(data, FederatedData) and not trainer
    batching = group_size(recipe.train_args.client_batching, model, device, known=known)
    with (
        numerics(sgd.precision),
        _cohort(recipe, sgd, model, data, trainer, ranks, known=known) as cohort,
    ):

        def test(state: State) -> Evaluation:
            own = cohort.alone(partial(trainer.test, state)) if trainer else None
            return own or cohort.test(state)

        federation = Federation(
            schedule(recipe, data, batching),
            Server(server_rule(recipe), named_tensors(model), trainable_names(model)),
            trainable_names(model),
            cohort,
            ranks,
            test,
        )
        if ranks.rank:
            _follow(federation, ranks)
            return None
        kept = RunFolder(folder)
        keeper = RunKeeper(recipe, kept, federation, aliases(model), device, ranks, batching)
        with kept.locked(mode), logged_to(kept.log):
            return keeper.resume_or_start(mode, on_round, followers)


def _follow(federation: Federation, ranks: Ranks) -> None:
    """Train on a rank that keeps no files."""
    federation.progress = replace(federation.progress, round=ranks.start(None))
    while federation.progress.round < federation.rounds:
        federation.run_round()


def _cohort(
    recipe: Recipe,
    sgd: LocalSGD,
    model: nn.Module,
    data: FederatedData | LoaderData,
    trainer: ForeignTrainer | None,
    ranks: Ranks,
    *,
    known: bool,
) -> Cohort:
    """Put together how clients train; what is not the package's own trains one at a time."""
    seed = recipe.common_args.random_seed
    device = next(model.parameters()).device
    batches: ClientBatches
    group_training = None
    if isinstance(data, FederatedData):
        batches = TensorBatches(data, sgd, seed, device)
        group_training = BatchedTraining(sgd, batches) if known else None
    else:
        batches = LoaderBatches(data, sgd, device)
    training: ClientTraining = ForeignTraining(trainer) if trainer else SGDTraining(sgd, batches)
    workers = side_by_side(device, ranks.core_sharers, recipe.device_args.worker_num)
    return Cohort(
        model.to(memory_format=torch.channels_last) if known else model,
        training,
        batches,
        group_training=group_training,
        workers=min(workers, recipe.train_args.client_num_per_round),
        seed=None if known else seed,
    )
