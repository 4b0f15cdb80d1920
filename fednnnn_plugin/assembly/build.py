"""What computes a run's rounds, as its recipe asks: model, executor, server, schedule."""

import logging
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import NamedTuple

from torch import nn

from fednnnn_plugin.assembly.executors import make_executor, make_workers, why_alone
from fednnnn_plugin.assembly.from_recipe import local_sgd, schedule
from fednnnn_plugin.assembly.inputs import Inputs
from fednnnn_plugin.assembly.model_check import own_copy, takes_any_order
from fednnnn_plugin.assembly.trial_pass import check_model, own_generators, samples_of
from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.client.method import has_vectors
from fednnnn_plugin.client.replica import layout_of, named_tensors
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.followers.follower import Follower
from fednnnn_plugin.processes.devices import device_identity, side_by_side, total_memory
from fednnnn_plugin.processes.ranks import Ranks, agreed
from fednnnn_plugin.processes.workers import Failure, Step, Threads, Workers, all_of
from fednnnn_plugin.recipe import Recipe
from fednnnn_plugin.rounds.batches import client_steps
from fednnnn_plugin.rounds.client_results import classes_of
from fednnnn_plugin.rounds.client_vectors import ClientVectors
from fednnnn_plugin.rounds.evaluation import batch_to_test
from fednnnn_plugin.rounds.groups import MEMORY, room_on, widest_group
from fednnnn_plugin.rounds.method_calls import MethodCalls
from fednnnn_plugin.rounds.own_test import OwnTest
from fednnnn_plugin.rounds.simulation import Federation, TrainState
from fednnnn_plugin.run_folder.client_files import ClientFiles
from fednnnn_plugin.run_folder.folder import Mode, RunFolder, checkpoints_in
from fednnnn_plugin.run_folder.records import Summary
from fednnnn_plugin.run_folder.results import ClassResult
from fednnnn_plugin.server.server import Server
from fednnnn_plugin.user_code import is_own, user_code

_log = logging.getLogger(__name__)


def build_federation(
    recipe: Recipe,
    inputs: Inputs,
    files: RunFolder,
    mode: Mode,
    ranks: Ranks,
    followers: Sequence[Follower],
) -> tuple[Federation, TrainState]:
    """Build what computes the rounds, and where it starts; all ranks call this.

    The model of the ``inputs`` is copied, and tried on their data where no custom trainer trains.
    """
    data, method, seed = inputs.data, inputs.functions.method, recipe.common_args.random_seed
    sgd = local_sgd(recipe, inputs.functions, data.num_classes)
    with agreed(ranks):
        classes = _counted_classes(recipe, inputs)
        model = own_copy(inputs.model, recipe.model_args.model, sgd.dtype)
        model = model.to(inputs.device, sgd.dtype)
    given, inputs = inputs.model, inputs._replace(model=model)
    # A rank's share of its GPU; all plan the same groups, as the least share allows.
    share = total_memory(inputs.device) // ranks.sharers(device_identity(inputs.device))
    room, limit = min(ranks.allgather(room_on(model, data, share))), recipe.device_args.worker_num
    with agreed(ranks):
        count = side_by_side(inputs.device, ranks.core_sharers, limit)
        workers = make_workers(inputs, count, forked=limit != 1)
        tried = _try_out(recipe, inputs, given, sgd, workers, int(MEMORY * room))
    for warning in tried.warnings if ranks.rank == 0 else ():
        _log.warning(warning)
    planned, width = _widths(recipe, inputs, sgd, files, mode, ranks, room)
    executor = make_executor(
        *(inputs, sgd, seed, workers),
        together=max(planned, width) > 1,
        any_order=tried.any_order,
        test_batch=tried.test_batch,
        classes=len(classes),
    )
    server = Server(recipe.rule, recipe.rule_settings, layout_of(model), data.num_clients)
    start, forks = server.start(named_tensors(model)), executor.workers.kind == "processes"
    kept_in = ClientFiles(files.clients, files.check_held)
    steps = client_steps(data, sgd) if has_vectors(method) else [1] * data.num_clients
    calls = MethodCalls(method, sgd, seed, start.served.vector)
    vectors = ClientVectors(calls, steps, ranks, kept_in, read_ahead=forks)
    least, tester = ranks.size if room else 1, inputs.tester or inputs.trainer
    own_test = OwnTest(tester, server.layout, inputs.device, seed) if tester else None
    federation = Federation(
        schedule(recipe, data, least, inputs.functions, tested_by_own=own_test is not None),
        *(server, executor, ranks, vectors, () if ranks.rank else followers, width),
        classes=classes,
        own_test=own_test,
    )
    return federation, TrainState(start, method=vectors.start())


def _counted_classes(recipe: Recipe, inputs: Inputs) -> Sequence[ClassResult]:
    """Return the classes that a test counts; refuse results that data or a custom test lack."""
    asked, data = recipe.validation_args, inputs.data
    for key in ("per_client", "per_class", "metrics"):
        if getattr(asked, key) and (inputs.trainer or inputs.tester):
            why = "a custom trainer or aggregator tests by its own; leave it out"
            raise UserError(f"validation_args.{key}", why)
    if asked.per_client and not data.has_client_tests:
        raise UserError(
            "validation_args.per_client",
            "the data have no test part for each client",
            "must be false, or give a list with each client's; of arrays one is held out",
        )
    train = recipe.train_args
    weighting = "samples" if train.client_sampling == "by_size" else train.client_weighting
    return classes_of(data, weighting) if asked.per_class else ()


class _Tried(NamedTuple):
    """What a trial of a model has shown.

    Attributes:
        warnings: what trains, but perhaps not as it was meant.
        any_order: whether it takes images in any order of memory.
        test_batch: how many samples of arrays are tested at once.
        imported: PyTorch's modules that it is the first to need.
    """

    warnings: Sequence[str] = ()
    any_order: bool = False
    test_batch: int = 0
    imported: Sequence[str] = ()


def _try_out(
    recipe: Recipe, inputs: Inputs, given: nn.Module, sgd: LocalSGD, workers: Workers, room: int
) -> _Tried:
    """Try the copy of a model that was ``given``, in ``room`` bytes of a GPU, here or in a fork.

    In a fork, what the user's code keeps of it, such as a pool of threads or a generator's state,
    no client gets. PyTorch's modules that it imports there are then imported here, which may take
    seconds: else each fork of each round would do it.
    """
    if inputs.trainer is not None:
        return _Tried()
    model, data, name = inputs.model, inputs.data, recipe.model_args.model
    on_cpu = inputs.device.type == "cpu"
    scorers = [each for each in recipe.validation_args.metrics or () if not is_own(each)]

    def trial(_: Step) -> _Tried:
        known = {*sys.modules}
        own, any_order, size = inputs.functions.metrics, True, 0
        warnings = check_model(model, name, data, sgd, given, scorers, own)
        if not inputs.are_ours:
            some = samples_of(data)
            any_order = some is not None and on_cpu and takes_any_order(model, some[0][:2])
            if some is not None:
                warnings += own_generators(data, some, inputs.functions.transform)
        if isinstance(data, FederatedData):
            size = batch_to_test(model, data.normalised(data.test_images[:1]), room)
        new = (each for each in [*sys.modules] if each not in known)
        imported = [each for each in new if each.startswith("torch.")]
        return _Tried(warnings, any_order, size, imported)

    where = f"model_args.model: {name}"
    if isinstance(workers, Threads):  # in this thread, which a signal ends at once
        with user_code(where):
            return trial(lambda: None)
    try:
        found: _Tried = all_of(workers, [trial])[0]
    except Failure as error:
        raise UserError(where, error) from error
    for module in found.imported:
        with suppress(Exception):  # it may be made by code
            import_module(module)
    return found


def _widths(
    recipe: Recipe,
    inputs: Inputs,
    sgd: LocalSGD,
    files: RunFolder,
    mode: Mode,
    ranks: Ranks,
    room: int,
) -> tuple[int, int]:
    """Return how many clients can train together, and how many do: as many as before a stop."""
    train, alone = recipe.train_args, partial(why_alone, inputs, sgd)
    model, data, method = inputs.model, inputs.data, inputs.functions.method
    widest = widest_group(model, data, sgd, method, train.client_batching, room, alone)
    planned = min(*ranks.allgather(widest), train.client_num_per_round)
    width = planned
    if mode == "resume" and not ranks.rank:
        if kept := Summary.read(files.summary):
            width = min(kept.client_batching, train.client_num_per_round)
        elif planned > 1 and checkpoints_in(files.checkpoints):
            _log.warning(
                "%s: missing or damaged: now %d clients train together, before perhaps fewer",
                *(files.summary, planned),
            )
    return planned, ranks.broadcast_object(width)
