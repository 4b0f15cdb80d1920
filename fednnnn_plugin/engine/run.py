"""One run: from a recipe, a model and data to a run folder."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from fednnnn_plugin.client.group_sgd import GroupSGD
from fednnnn_plugin.client.groups import client_bytes, widest_group
from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.client.replica import aliases, layout_of, named_tensors
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.engine.batches import ClientBatches, LoaderBatches, LoaderData, TensorBatches
from fednnnn_plugin.engine.cohort import ClientTraining, Cohort, GroupTraining, SGDTraining
from fednnnn_plugin.engine.devices import (
    device_name,
    free_memory,
    numerics,
    side_by_side,
    visible_gpus,
)
from fednnnn_plugin.engine.evaluation import Evaluation
from fednnnn_plugin.engine.federation import Federation
from fednnnn_plugin.engine.folder import Mode, RunFolder, run_log
from fednnnn_plugin.engine.foreign import ForeignTrainer, ForeignTraining
from fednnnn_plugin.engine.model_check import check_model
from fednnnn_plugin.engine.progress import Follower
from fednnnn_plugin.engine.ranks import Ranks, Solo
from fednnnn_plugin.engine.records import Summary, versions
from fednnnn_plugin.engine.rounds import KeptRounds
from fednnnn_plugin.engine.settings import (
    load_data,
    local_sgd,
    rank_device,
    schedule,
)
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.models import MODELS, create_model
from fednnnn_plugin.recipe import Recipe, differences, dump_recipe, load_recipe
from fednnnn_plugin.server.layout import Layout, ModelState
from fednnnn_plugin.server.server import Server
from fednnnn_plugin.user_code import names_code

_log = logging.getLogger(__name__)


class Inputs(NamedTuple):
    """What a run is of."""

    model: nn.Module
    data: FederatedData | LoaderData
    device: torch.device


def run_recipe(
    recipe: Recipe,
    folder: Path,
    mode: Mode = "new",
    *,
    ranks: Ranks | None = None,
    followers: Sequence[Follower] = (),
    allow_code: bool = False,
) -> Summary | None:
    """Run a recipe with its own data and model; see :func:`run_federation`.

    ``allow_code`` lets a ``module:name`` in the recipe run.
    """
    ranks = ranks or Solo()

    def own() -> Inputs:
        data = load_data(recipe, ranks, allow_code=allow_code)
        name, seed = recipe.model_args.model, recipe.common_args.random_seed
        model = create_model(name, seed, data.num_classes, allow_code=allow_code)
        return Inputs(model, data, rank_device(recipe, ranks))

    return _run(recipe, own, folder, mode, None, ranks, followers)


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
    followers: Sequence[Follower] = (),
) -> Summary | None:
    """Run a recipe's federation on a model and data, and keep it in a run folder.

    Our networks on staged tensors train several clients side by side; a model, data or trainer
    that we do not know trains one client at a time, with the global generators seeded for it.

    Args:
        recipe: the settings; its data and model sections are the caller's to follow.
        model: ``w_0``; it is left as it is.
        data: clients and test set.
        device: where to train.
        folder: the run folder.
        mode: ``"resume"`` goes on from the newest whole checkpoint of the run that is there;
            ``"overwrite"`` replaces it; ``"new"`` refuses to.
        trainer: replaces the engine's local training and test.
        ranks: the processes that share the clients; this one alone by default.
        followers: are told of the run as it goes, on rank 0.

    Returns:
        The summary on rank 0; None elsewhere, and where a resumed run was finished already.

    Raises:
        UserError: settings that do not fit the data or the folder.
        RunError: the run cannot go on; its last checkpoint is in place.
    """
    given = Inputs(model, data, device)
    return _run(recipe, lambda: given, folder, mode, trainer, ranks or Solo(), followers)


def _is_finished(recipe: Recipe, folder: RunFolder, mode: Mode, ranks: Ranks) -> bool:
    """Tell all ranks whether the run that is to go on has done its rounds already.

    Raises:
        UserError: on rank 0: the folder and the mode do not fit; the run there is another one.
    """
    finished = False
    if ranks.rank == 0:
        folder.check(mode)
        if mode == "resume" and folder.recipe.exists():
            _check_same(recipe, folder)
            finished = Summary.rounds_in(folder.summary) >= recipe.train_args.comm_round
    return mode == "resume" and bool(ranks.start(int(finished)))


def _check_same(recipe: Recipe, folder: RunFolder) -> None:
    # An entry script's recipe may name data, models and platforms that are not ours. A rule of the
    # user's has been allowed to run where the recipe that was given has one.
    allowed = names_code(recipe.train_args.federated_optimizer)
    stored = load_recipe(folder.recipe, foreign=True, allow_code=allowed)
    changed = differences(stored, recipe)
    changed.pop("train_args.comm_round", None)
    if changed:
        raise UserError(
            "\n".join(
                f"--resume: {key}: {given}: the run in {folder.path} has {before}; only "
                "train_args.comm_round may differ"
                for key, (before, given) in changed.items()
            )
        )


def _run(
    recipe: Recipe,
    inputs: Callable[[], Inputs],
    folder: Path,
    mode: Mode,
    trainer: ForeignTrainer | None,
    ranks: Ranks,
    followers: Sequence[Follower],
) -> Summary | None:
    files, sgd = RunFolder(folder), local_sgd(recipe)
    with ExitStack() as stack:
        log_to = stack.enter_context(run_log())
        if _is_finished(recipe, files, mode, ranks):
            return None  # before anything is downloaded
        model, data, device = inputs()
        if isinstance(data, FederatedData) and trainer is None:
            check_model(model, recipe.model_args.model, data, recipe.train_args.batch_size)
        model = copy.deepcopy(model).to(device, sgd.dtype)
        known = type(model) in MODELS.values() and isinstance(data, FederatedData) and not trainer
        # As many ranks as there are GPUs on a machine have one each; all plan the same groups.
        free = ranks.least(free_memory(device)) // -(-ranks.size // max(visible_gpus(), 1))
        batching = _together(recipe, sgd, model, data, free, known=known)
        layout = layout_of(model)
        stack.enter_context(numerics(sgd.precision))
        cohort = stack.enter_context(
            _cohort(recipe, sgd, model, layout, data, trainer, ranks, batching, known=known)
        )
        rule = Server(recipe.rule, recipe.rule_settings, layout)
        federation = Federation(
            schedule(recipe, data, batching, ranks.size if free else 1),
            rule,
            rule.start(named_tensors(model)),
            cohort,
            ranks,
            partial(_test, cohort, trainer, layout),
            () if ranks.rank else followers,
        )
        if ranks.rank:
            federation.begin_after(ranks.start(None))
            while federation.standing.progress.round < federation.rounds:
                federation.run_round()
            return None
        stack.enter_context(files.locked(mode))
        log_to(files.log)
        _say(recipe, data, device, batching)
        kept = KeptRounds(
            federation,
            files,
            tied=aliases(model),
            checkpoint_every=recipe.train_args.checkpoint_every,
            followers=followers,
        )
        kept.run(mode, dump_recipe(recipe), ranks)
        best, best_round, final = kept.results()
        summary = Summary(
            recipe=recipe.name,
            seed=recipe.common_args.random_seed,
            rounds=federation.rounds,
            best_test_acc=best,
            best_round=best_round,
            final_test_acc=final,
            backend="sp" if isinstance(ranks, Solo) else "MPI",
            ranks=ranks.size,
            device=device_name(device),
            client_batching=batching,
            wall_seconds=federation.standing.progress.wall_seconds,
            versions=versions(),
        )
        summary.write(files.summary)
        return summary


def _together(
    recipe: Recipe,
    sgd: LocalSGD,
    model: nn.Module,
    data: FederatedData | LoaderData,
    free: int,
    *,
    known: bool,
) -> int:
    """Return how many clients train in one set of kernels."""
    needs = None
    if known and isinstance(data, FederatedData):
        largest = max(data.client_size(client) for client in range(data.num_clients))
        shape = (min(sgd.batch_of(largest), largest), *data.train_images.shape[1:])
        needs = partial(client_bytes, model, sgd, shape)
    train = recipe.train_args
    return min(widest_group(train.client_batching, free, needs), train.client_num_per_round)


def _test(
    cohort: Cohort, trainer: ForeignTrainer | None, layout: Layout, state: ModelState
) -> Evaluation:
    if trainer is None:
        return cohort.test(state)
    named = layout.state_dict(state)
    found = cohort.alone(partial(trainer.test, named)) or Evaluation(None, None)
    if found.accuracy is not None and not 0 <= found.accuracy <= 1:
        raise UserError(f"client_trainer: test: accuracy {found.accuracy}: must be from 0 to 1")
    return found


def _say(
    recipe: Recipe, data: FederatedData | LoaderData, device: torch.device, batching: int
) -> None:
    """Put into the log what the numbers depend on."""
    _log.info("versions: %s", ", ".join(f"{name} {v}" for name, v in versions().items()))
    _log.info("device: %s, clients in one set of kernels: %d", device_name(device), batching)
    sizes = [data.client_size(client) for client in range(data.num_clients)]
    settings = recipe.data_args
    _log.info(
        "data: %s, %d classes; %d clients of %d to %d samples (%s, %s)",
        settings.dataset,
        data.num_classes,
        data.num_clients,
        min(sizes),
        max(sizes),
        settings.partition_method,
        settings.partition_sizes,
    )


def _cohort(
    recipe: Recipe,
    sgd: LocalSGD,
    model: nn.Module,
    layout: Layout,
    data: FederatedData | LoaderData,
    trainer: ForeignTrainer | None,
    ranks: Ranks,
    most: int,
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
        if most > 1:
            groups = GroupSGD(sgd, model, layout, batches.images, batches.labels, most)
            group_training = GroupTraining(groups, batches)
    else:
        batches = LoaderBatches(data, sgd, device)
    training: ClientTraining = ForeignTraining(trainer) if trainer else SGDTraining(sgd, batches)
    workers = side_by_side(device, ranks.core_sharers, recipe.device_args.worker_num)
    if group_training:
        workers = 1  # the groups train in one memory, one after another
    return Cohort(
        model,
        layout,
        training,
        batches,
        group_training=group_training,
        workers=min(workers, recipe.train_args.client_num_per_round),
        channels_last=known and device.type == "cpu",
        seed=None if known else seed,
    )
