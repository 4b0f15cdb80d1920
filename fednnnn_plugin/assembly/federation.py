"""One run: from a recipe, a model and data to a run folder."""

import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import torch

from fednnnn_plugin.assembly.alike import check_same_inputs, check_same_start
from fednnnn_plugin.assembly.build import build_federation
from fednnnn_plugin.assembly.from_recipe import thresholds
from fednnnn_plugin.assembly.inputs import Inputs, whole_fingerprint
from fednnnn_plugin.assembly.run_facts import log_inputs
from fednnnn_plugin.assembly.run_writer import RunWriter
from fednnnn_plugin.assembly.unchanged import (
    begun_with,
    check_same_recipe,
    check_unchanged,
    has_own_fingerprint,
    is_finished,
    keep_fingerprint,
)
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.files import write_atomically
from fednnnn_plugin.followers.follower import Follower, figures
from fednnnn_plugin.followers.progress import SHOWN
from fednnnn_plugin.processes.devices import tensors_made_on_cpu
from fednnnn_plugin.processes.numerics import numerics
from fednnnn_plugin.processes.ranks import Ranks, agreed
from fednnnn_plugin.quantities import RoundRecord
from fednnnn_plugin.reading import read_mapping, write_yaml
from fednnnn_plugin.recipe import Recipe, dump_recipe
from fednnnn_plugin.rounds.evaluation import higher_is_better
from fednnnn_plugin.rounds.loaders import LoaderData
from fednnnn_plugin.rounds.simulation import Federation
from fednnnn_plugin.rounds.stopping import RoundTest
from fednnnn_plugin.run_folder.folder import Mode, RunFolder
from fednnnn_plugin.run_folder.log_file import run_log
from fednnnn_plugin.run_folder.records import Summary
from fednnnn_plugin.run_folder.round_watch import RoundWatch
from fednnnn_plugin.user_code import on_threads

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
        stack.enter_context(torch.inference_mode(mode=False))  # a caller's tensors would be frozen
        stack.enter_context(tensors_made_on_cpu())
        log_to = stack.enter_context(run_log())
        check_same_start(recipe, mode, ranks, only_check=only_check)
        inputs = _unfinished_inputs(recipe, load, files, mode, ranks)
        if inputs is None:
            if not ranks.rank and not only_check:
                _name_anew(recipe, files)
            return None
        stack.enter_context(numerics(recipe.train_args.precision, inputs.device))
        # A model's code may ask for more threads, which is for no longer than the call.
        with on_threads(torch.get_num_threads()):
            built = build_federation(recipe, inputs, files, mode, ranks, followers)
        federation, train_state = built
        stack.enter_context(federation.executor)
        stack.enter_context(federation.own_test or nullcontext())
        if ranks.rank:
            log_to(Path(os.devnull))  # its records would keep what they hold: models, by tracebacks
            train_state = replace(train_state, round=ranks.broadcast_object(None))
            while _goes_on(federation, train_state.round):
                *_, train_state = federation.simulate_round(train_state)
            return None
        federation.try_out(train_state.server)
        writer = RunWriter(recipe, inputs, federation, train_state, files)
        if only_check:
            files.check_free()
            if mode == "resume":
                writer.restore()
            ranks.broadcast_object(federation.schedule.rounds)  # none is to be done
            return None
        stack.enter_context(files.locked(mode))
        log_to(files.log)
        log_inputs(recipe, inputs, federation)
        if mode == "resume":
            writer.restore()
        writer.begin()  # first: a summary says that the recipe which is there has ended
        _describe(recipe, inputs, files)
        # The log has each client of this rank that fails or is rejected.
        watch = RoundWatch(0, thresholds(recipe), once=True)
        return writer.end(_simulate(federation, writer, files, watch))


def _describe(recipe: Recipe, inputs: Inputs, files: RunFolder) -> None:
    """Write what a run is of, what it was begun with, and of which metrics more is better."""
    if not files.fingerprint.exists():  # it is not resumed, or is of a version that kept none
        begun = begun_with(inputs.device, recipe.train_args.precision)
        keep_fingerprint(files, inputs.fingerprint, begun)
    if metrics := inputs.functions.metrics:
        higher = {name: higher_is_better(metric) for name, metric in metrics.items()}
        content = json.dumps({"higher_is_better": higher}, indent=2)
        write_atomically(files.directions, f"{content}\n".encode())
    foreign = isinstance(inputs.data, LoaderData) and "split" not in inputs.data.fingerprint
    label = recipe.tracking_args.label or _label_in(files)
    write_atomically(files.recipe, dump_recipe(recipe, label, own_data=foreign).encode())


def _name_anew(recipe: Recipe, files: RunFolder) -> None:
    """Give a run that has finished the label that it is resumed with, if there is one."""
    stored, label = read_mapping(files.recipe, "recipe"), recipe.tracking_args.label
    tracking = stored.setdefault("tracking_args", {})
    if label not in (None, tracking.get("label")):
        tracking["label"] = label
        with files.locked("resume"):
            write_atomically(files.recipe, write_yaml(stored).encode())


def _label_in(files: RunFolder) -> str | None:
    """Return the label of the run that is resumed, if it has one."""
    stored = read_mapping(files.recipe, "recipe") if files.recipe.exists() else {}
    label: str | None = stored.get("tracking_args", {}).get("label")
    return label


def _simulate(
    federation: Federation, writer: RunWriter, files: RunFolder, watch: RoundWatch
) -> str | None:
    """Do the rounds that are left, on rank 0; whatever ends them, the last one is saved.

    Returns why the run was stopped before its last round, if it was.
    """

    def reason() -> str | None:
        stop = federation.schedule.stop
        return stop.reason(map(RoundTest.of, writer.tests)) if stop else None

    stopped = reason()
    federation.ranks.broadcast_object(writer.train_state.round)
    with ExitStack() as stack:
        for follower in federation.followers:
            follower.begin(files.path, writer.train_state.round)
            stack.callback(follower.end)
        stack.callback(writer.save)  # before any follower ends, which may take its time
        while _goes_on(federation, writer.train_state.round, stopped=stopped):
            record, results, train_state = federation.simulate_round(writer.train_state)
            assert record is not None
            try:
                writer.keep(record, results, train_state)
            except BaseException:
                if writer.train_state is train_state:  # on record, though its checkpoint was cut
                    try:
                        _tell(federation, watch, record)
                    except Exception:
                        _log.exception("round %d: a follower failed", record.round)
                raise
            _tell(federation, watch, record)
            stopped = reason()
    if stopped:
        _log.info("stopped at %d: %s", writer.train_state.round, stopped, extra=SHOWN)
    return stopped


def _tell(federation: Federation, watch: RoundWatch, record: RoundRecord) -> None:
    """Warn of what is unusual in a round on record, log it, and tell the followers."""
    watch.look(record)
    _log.info("round %d: %s", record.round, figures(record))
    for follower in federation.followers:
        follower.round_done(record)


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
    inputs = inputs._replace(fingerprint=whole_fingerprint(recipe, inputs))
    check_same_inputs(inputs, ranks)
    if mode == "resume" and ranks.rank == 0:
        begun = begun_with(inputs.device, recipe.train_args.precision)
        check_unchanged(files, inputs.fingerprint, begun)
    return None if finished else inputs
