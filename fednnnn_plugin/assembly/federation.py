"""One run: from a recipe, a model and data to a run folder."""

import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from fednnnn_plugin.assembly.alike import check_same_inputs, check_same_start
from fednnnn_plugin.assembly.executors import (
    check_results,
    make_executor,
    try_out,
    why_alone,
)
from fednnnn_plugin.assembly.from_recipe import local_sgd, schedule, thresholds
from fednnnn_plugin.assembly.inputs import Inputs
from fednnnn_plugin.assembly.load_model import model_metadata
from fednnnn_plugin.assembly.model_check import own_copy
from fednnnn_plugin.assembly.run_facts import log_inputs, summary_of
from fednnnn_plugin.assembly.run_writer import RunWriter
from fednnnn_plugin.assembly.trial_pass import check_model
from fednnnn_plugin.assembly.unchanged import (
    begun_with,
    check_same_recipe,
    check_unchanged,
    data_digests,
    has_own_fingerprint,
    is_finished,
    keep_fingerprint,
    rule_digests,
)
from fednnnn_plugin.client.replica import aliases, layout_of, named_tensors
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.files import write_atomically
from fednnnn_plugin.followers.follower import Follower, figures
from fednnnn_plugin.followers.progress import SHOWN
from fednnnn_plugin.processes.devices import (
    device_identity,
    side_by_side,
    total_memory,
)
from fednnnn_plugin.processes.numerics import numerics
from fednnnn_plugin.processes.ranks import Ranks, agreed
from fednnnn_plugin.recipe import Recipe, dump_recipe
from fednnnn_plugin.rounds.batches import client_steps
from fednnnn_plugin.rounds.client_results import NO_CLASSES, classes_of
from fednnnn_plugin.rounds.client_vectors import NO_STATE, ClientVectors
from fednnnn_plugin.rounds.evaluation import higher_is_better
from fednnnn_plugin.rounds.groups import kept_widths, room_on, widest_group
from fednnnn_plugin.rounds.loaders import LoaderData
from fednnnn_plugin.rounds.simulation import Federation, TrainState, simulate_round
from fednnnn_plugin.rounds.stopping import StopWatch
from fednnnn_plugin.run_folder.client_files import ClientFiles
from fednnnn_plugin.run_folder.folder import Mode, RunFolder
from fednnnn_plugin.run_folder.log_file import run_log
from fednnnn_plugin.run_folder.records import MetricsFile, Summary
from fednnnn_plugin.run_folder.results import ResultTables
from fednnnn_plugin.run_folder.round_watch import RoundWatch
from fednnnn_plugin.server.server import Server
from fednnnn_plugin.user_code import is_own, on_threads

_log = logging.getLogger(__name__)


_running = threading.RLock()


@contextmanager
def one_run() -> Iterator[None]:
    """Refuse a run beside another one of this process: they share the global generators."""
    if not _running.acquire(blocking=False):
        raise UserError(
            "fednnnn_plugin.run",
            "another thread of this process is in a run",
            "start one after the other has ended, or each in a process of its own",
        )
    try:
        yield
    finally:
        _running.release()


def run_federation(
    recipe: Recipe,
    load: Callable[[], Inputs],
    folder: Path,
    mode: Mode = "new",
    *,
    ranks: Ranks | None = None,
    followers: Sequence[Follower] = (),
    only_check: bool = False,
) -> Summary | None:
    """Run a recipe's federation on a model and data, and keep it in a run folder.

    Clients train side by side: of our networks on staged tensors on threads, of a model or data
    that we do not know in processes forked from this one, with the global generators seeded for
    each. A user's trainer, and what no other process can use, trains one client at a time. Of an
    entry script's loaders the run folder names the data set alone: a recipe of them has the
    defaults of ``data_args``. The model, ``w_0``, is left as it is. ``load`` is called where there
    is a round to do, or a fingerprint to compare. ``followers`` are told of the run on rank 0,
    which gets the summary, unless the run had been finished before. ``only_check`` ends it before
    anything is written to the folder.
    """
    ranks, files = ranks or Ranks(), RunFolder(folder)
    with ExitStack() as stack:
        stack.enter_context(one_run())
        log_to = stack.enter_context(run_log())
        check_same_start(recipe, mode, ranks, only_check=only_check)
        inputs = _unfinished_inputs(recipe, load, files, mode, ranks)
        if inputs is None:
            return None
        stack.enter_context(numerics(recipe.train_args.precision, inputs.device))
        built = _federation(recipe, inputs, files, mode, ranks, followers)
        federation, train_state = stack.enter_context(built)
        if ranks.rank:
            log_to(Path(os.devnull))  # its records would keep what they hold: models, by tracebacks
            train_state = replace(train_state, round=ranks.broadcast_object(None))
            while _goes_on(federation, train_state.round):
                _, train_state = simulate_round(federation, train_state)
            return None
        federation.try_out(train_state.server)
        tied, every = aliases(inputs.model), recipe.train_args.checkpoint_every
        summary = partial(summary_of, recipe, files, federation, inputs)
        metadata = model_metadata(inputs.data)
        writer = RunWriter(federation, train_state, files, tied, metadata, every, summary)
        if only_check:
            files.check_free()
            if mode == "resume":
                writer.restore()
            ranks.broadcast_object(federation.schedule.rounds)  # none is to be done
            return None
        stack.enter_context(files.locked(mode))
        log_to(files.log)
        log_inputs(recipe, inputs, federation)
        if mode != "resume" or not files.fingerprint.exists():
            begun = begun_with(inputs.device, recipe.train_args.precision)
            keep_fingerprint(files, inputs.fingerprint, begun)
        if metrics := inputs.functions.metrics:  # for a report of a run that never ends
            higher = {name: higher_is_better(metric) for name, metric in metrics.items()}
            content = json.dumps({"higher_is_better": higher}, indent=2)
            write_atomically(files.directions, f"{content}\n".encode())
        if mode == "resume":
            writer.restore()
        foreign = isinstance(inputs.data, LoaderData) and "split" not in inputs.fingerprint
        write_atomically(files.recipe, dump_recipe(recipe, own_data=foreign).encode())
        watch = _round_watch(recipe, federation)
        stopped = _simulate(federation, writer, files, watch)
        return writer.end(stopped)


def _round_watch(recipe: Recipe, federation: Federation) -> RoundWatch:
    limited = federation.schedule.max_client_norm is not None
    # Each client that fails or is rejected is said already.
    return RoundWatch(0, thresholds(recipe.tracking_args), limited=limited, once=True)


def _simulate(
    federation: Federation, writer: RunWriter, files: RunFolder, watch: RoundWatch
) -> str | None:
    """Do the rounds that are left, on rank 0; whatever ends them, the last one is saved.

    Returns why the run was stopped before its last round, if it was.
    """
    writer.begin()
    stop = StopWatch(federation.schedule.stop, MetricsFile(files.metrics).records())
    federation.ranks.broadcast_object(writer.train_state.round)
    with ExitStack() as stack:
        for follower in federation.followers:
            follower.begin(files.path, writer.train_state.round)
            stack.callback(follower.end)
        stack.callback(writer.save)  # before any follower ends, which may take its time
        while _goes_on(federation, writer.train_state.round, stopped=stop.reason):
            record, train_state = simulate_round(federation, writer.train_state)
            assert record is not None
            writer.keep(record, train_state)
            watch.look(record)
            _log.info("round %d: %s", record.round, figures(record))
            for follower in federation.followers:
                follower.round_done(record)
            stop.look(vars(record))
    if stop.reason:
        _log.info("stopped at %d: %s", writer.train_state.round, stop.reason, extra=SHOWN)
    return stop.reason


def _goes_on(federation: Federation, done: int, *, stopped: str | None = None) -> bool:
    """Tell all ranks whether there is a round to do: rank 0 knows whether the run is stopped."""
    schedule = federation.schedule
    if done >= schedule.rounds or schedule.stop is None:
        return done < schedule.rounds
    return bool(federation.ranks.broadcast_object(stopped is None))


def _unfinished_inputs(
    recipe: Recipe, load: Callable[[], Inputs], files: RunFolder, mode: Mode, ranks: Ranks
) -> Inputs | None:
    """Load what a run is of, unless it is finished; refuse what is not what it was begun with."""
    finished = False
    if ranks.rank == 0:
        files.check(mode)
        if mode == "resume" and files.recipe.exists():
            check_same_recipe(recipe, files)
            finished = is_finished(recipe, files)
    finished = ranks.broadcast_object(finished)
    if finished and not ranks.broadcast_object(has_own_fingerprint(files)):
        return None  # before anything is downloaded
    with agreed(ranks):
        inputs = load()
    if isinstance(inputs.data, FederatedData):
        whole = {**inputs.fingerprint, **data_digests(inputs.data)}
        inputs = inputs._replace(fingerprint=whole)
    if not recipe.rule.is_ours:
        rule = {"rule": rule_digests(recipe.rule)}
        inputs = inputs._replace(fingerprint={**inputs.fingerprint, **rule})
    check_same_inputs(inputs, ranks)
    if mode == "resume" and ranks.rank == 0:
        begun = begun_with(inputs.device, recipe.train_args.precision)
        check_unchanged(files, inputs.fingerprint, begun)
    return None if finished else inputs


@contextmanager
def _federation(
    recipe: Recipe,
    inputs: Inputs,
    files: RunFolder,
    mode: Mode,
    ranks: Ranks,
    followers: Sequence[Follower],
) -> Iterator[tuple[Federation, TrainState]]:
    """Build what computes the rounds, and where it starts."""
    train, seed, name = recipe.train_args, recipe.common_args.random_seed, recipe.model_args.model
    data, device = inputs.data, inputs.device
    sgd = local_sgd(recipe, inputs.functions, data.num_classes)
    # A model's code may ask for more, which is for no longer than the call.
    unchanged_threads = partial(on_threads, torch.get_num_threads())
    validation = recipe.validation_args
    by_client, by_class = bool(validation.per_client), bool(validation.per_class)
    with agreed(ranks), unchanged_threads():
        check_results(inputs, by_client=by_client, by_class=by_class)
        classes = classes_of(data, train.client_weighting) if by_class else NO_CLASSES
        model = own_copy(inputs.model, name, sgd.dtype).to(device, sgd.dtype)
        if inputs.trainer is None:
            scorers = [each for each in recipe.validation_args.metrics or () if not is_own(each)]
            check = partial(check_model, model, name, data, sgd, inputs.model, scorers)
            of, forked = inputs._replace(model=model), recipe.device_args.worker_num != 1
            for warning in try_out(of, check, f"model_args.model: {name}", forked=forked):
                if ranks.rank == 0:
                    _log.warning(warning)
    inputs = inputs._replace(model=model)
    # A rank's share of its GPU; all plan the same groups, as the least share allows.
    sharers = ranks.sharers(device_identity(device))
    room = ranks.allreduce_min(room_on(model, data, total_memory(device) // sharers))
    method, alone = inputs.functions.method, partial(why_alone, inputs, sgd)
    widest = widest_group(model, data, sgd, method, train.client_batching, room, alone)
    widths = {0: min(ranks.allreduce_min(widest), train.client_num_per_round)}
    if mode == "resume":
        kept = None if ranks.rank else kept_widths(files, train.client_num_per_round)
        widths = ranks.broadcast_object(kept or widths)
    settings = recipe.device_args
    workers = side_by_side(device, ranks.core_sharers, settings.worker_num)
    server = Server(recipe.rule, recipe.rule_settings, layout_of(model), data.num_clients)
    most, forked = max(widths.values()), settings.worker_num != 1
    with unchanged_threads():
        counted = len(classes.names)
        made = make_executor(inputs, sgd, seed, most, workers, room, forked=forked, classes=counted)
    with made as executor:
        start = server.start(named_tensors(model))
        vectors = None
        if method.has_vectors:
            kept_in = ClientFiles(files.clients, files.check_held)
            steps = client_steps(data, sgd)
            forks = executor.workers.kind == "processes"
            vectors = ClientVectors(
                *(method, sgd, steps, start.served, ranks, kept_in, seed), read_ahead=forks
            )
        plan = schedule(recipe, data, ranks.size if room else 1, inputs.functions)
        following = () if ranks.rank else followers
        tables = None if ranks.rank else ResultTables(files.path, files.check_held)
        federation = Federation(
            *(plan, server, executor, ranks, following, widths, vectors),
            tables=tables,
            classes=classes,
        )
        yield federation, TrainState(start, method=vectors.start() if vectors else NO_STATE)
