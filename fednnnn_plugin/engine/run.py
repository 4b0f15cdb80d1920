"""One run: from a recipe, a model and data to a run folder."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.client.replica import aliases, layout_of, named_tensors
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.data.partition import deal_name
from fednnnn_plugin.engine.batches import LoaderData, client_steps
from fednnnn_plugin.engine.client_files import ClientFiles
from fednnnn_plugin.engine.client_vectors import ClientVectors
from fednnnn_plugin.engine.cohort import Cohort
from fednnnn_plugin.engine.devices import (
    device_identity,
    device_name,
    numerics,
    side_by_side,
    total_memory,
)
from fednnnn_plugin.engine.evaluation import higher_is_better
from fednnnn_plugin.engine.federation import Federation
from fednnnn_plugin.engine.fingerprints import check_unchanged, keep_fingerprint, rule_digests
from fednnnn_plugin.engine.folder import Mode, RunFolder, run_log
from fednnnn_plugin.engine.inputs import recipe_inputs
from fednnnn_plugin.engine.model_check import check_model, own_copy
from fednnnn_plugin.engine.progress import Follower
from fednnnn_plugin.engine.provenance import commit, versions
from fednnnn_plugin.engine.ranks import Ranks
from fednnnn_plugin.engine.records import MetricsFile, Summary
from fednnnn_plugin.engine.rounds import KeptRounds
from fednnnn_plugin.engine.settings import (
    PLACEMENT,
    local_sgd,
    schedule,
)
from fednnnn_plugin.engine.training import Inputs, cohort_of, room_on, widest_group
from fednnnn_plugin.engine.widths import Widths, kept_widths, width_in
from fednnnn_plugin.errors import UserError, printable, shown
from fednnnn_plugin.fingerprint import Fingerprint
from fednnnn_plugin.reading import read_mapping
from fednnnn_plugin.recipe import Recipe, differences, dump_recipe, load_recipe
from fednnnn_plugin.recipe.build import named_objects
from fednnnn_plugin.server.server import Server, ServerState
from fednnnn_plugin.user_code import ONLY_GIVEN, is_own, names_code, names_object

_log = logging.getLogger(__name__)


def run_recipe(
    recipe: Recipe,
    folder: Path,
    mode: Mode = "new",
    *,
    ranks: Ranks | None = None,
    followers: Sequence[Follower] = (),
    objects: Mapping[str, object] = MappingProxyType({}),
    allow_code: bool = False,
    only_check: bool = False,
) -> Summary | None:
    """Run a recipe with its own data and model; see :func:`run_federation`.

    ``objects`` are a caller's in the place of what the recipe names, by ``section.key``;
    ``allow_code`` lets a ``module:name`` in the recipe run.
    """
    ranks = ranks or Ranks()

    def own() -> Inputs:
        return recipe_inputs(recipe, ranks, objects, allow_code=allow_code)

    return run_federation(
        recipe, own, folder, mode, ranks=ranks, followers=followers, only_check=only_check
    )


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
    each. A user's trainer, and what no other process can use, trains one client at a time. Of
    ``LoaderData`` the run folder names the data set alone: a recipe of them has the defaults of
    ``data_args``. The model, ``w_0``, is left as it is. ``load`` is called where there is a round
    to do, or a fingerprint to compare. ``followers`` are told of the run on rank 0, which gets the
    summary, unless the run had been finished before. ``only_check`` ends it before anything is
    written to the folder.
    """
    ranks = ranks or Ranks()
    files, train, seed = RunFolder(folder), recipe.train_args, recipe.common_args.random_seed
    with ExitStack() as stack:
        log_to = stack.enter_context(run_log())
        finished = _is_finished(recipe, files, mode, ranks)
        if finished and not ranks.start(int(files.fingerprint.exists())):
            return None  # before anything is downloaded
        inputs = load()
        model, data, device, trainer, fingerprint, functions, _ = inputs
        sgd = local_sgd(recipe, functions)
        if not recipe.rule.is_ours:
            fingerprint = {**fingerprint, "rule": rule_digests(recipe.rule)}
        if mode == "resume":
            _check_inputs(files, fingerprint, ranks)
        if finished:
            return None
        model = own_copy(model, recipe.model_args.model, sgd.dtype).to(device, sgd.dtype)
        if isinstance(data, FederatedData) and trainer is None:
            check_model(model, recipe.model_args.model, data, train.batch_size, sgd.loss)
        inputs = inputs._replace(model=model)
        # A rank's share of its GPU; all plan the same groups, as the least share allows.
        sharers = ranks.sharers(device_identity(device))
        room = ranks.least(room_on(inputs, total_memory(device) // sharers))
        widest = widest_group(inputs, sgd, train.client_batching, room)
        widths = {0: min(widest, train.client_num_per_round)}
        if mode == "resume" and inputs.are_ours and sgd.is_plain:  # others train one by one
            widths = ranks.share(_kept_widths(recipe, files, ranks) or widths)
        most = max(widths.values())
        stack.enter_context(numerics(sgd.precision))
        workers = side_by_side(device, ranks.core_sharers, recipe.device_args.worker_num)
        cohort = stack.enter_context(cohort_of(inputs, sgd, seed, most, workers, room))
        rule = Server(recipe.rule, recipe.rule_settings, layout_of(model))
        start = rule.start(named_tensors(model))
        federation = Federation(
            schedule(recipe, data, ranks.size if room else 1, functions.sampler),
            rule,
            start,
            cohort,
            ranks,
            () if ranks.rank else followers,
            widths,
            _client_vectors(inputs, sgd, start, ranks, files, seed),
        )
        if ranks.rank:
            log_to(Path(os.devnull))  # its records would keep what they hold: models, by tracebacks
            for number in range(ranks.start(None) + 1, federation.rounds + 1):
                federation.assist(number)
            return None
        federation.try_draw()
        federation.try_test()
        rounds = KeptRounds(federation, files, aliases(model), train.checkpoint_every)
        if only_check:
            rounds.check(mode)
            ranks.start(federation.rounds)  # none is to be done
            return None
        stack.enter_context(files.locked(mode))
        log_to(files.log)
        _say(recipe, inputs, most, cohort)
        foreign = isinstance(data, LoaderData) and not names_object(recipe.data_args.dataset)
        if fingerprint:
            keep_fingerprint(files, fingerprint)
        rounds.run(mode, dump_recipe(recipe, own_data=foreign), ranks)
        summary = _summary(recipe, files, federation, cohort, inputs, ranks)
        summary.write(files.summary)
        return summary


def _kept_widths(recipe: Recipe, files: RunFolder, ranks: Ranks) -> Widths | None:
    """Return the widths that a run had before, on rank 0."""
    return None if ranks.rank else kept_widths(files, recipe.train_args.client_num_per_round)


def _client_vectors(
    inputs: Inputs, sgd: LocalSGD, start: ServerState, ranks: Ranks, files: RunFolder, seed: int
) -> ClientVectors | None:
    """Return what carries the client method's vectors, tried; None of one without any."""
    method = inputs.functions.method
    if not method.has_vectors:
        return None
    steps, kept_in = client_steps(inputs.data, sgd), ClientFiles(files.clients, files.check_held)
    vectors = ClientVectors(method, sgd, steps, start.served, ranks, kept_in, seed)
    vectors.try_method()
    return vectors


def _summary(
    recipe: Recipe,
    files: RunFolder,
    federation: Federation,
    cohort: Cohort,
    inputs: Inputs,
    ranks: Ranks,
) -> Summary:
    records = MetricsFile(files.metrics)
    best, best_round, final = records.results()
    summary = Summary(
        recipe=printable(recipe.name),
        seed=recipe.common_args.random_seed,
        rounds=federation.rounds,
        best_test_acc=best,
        best_round=best_round,
        final_test_acc=final,
        backend=ranks.backend,
        ranks=ranks.size,
        device=device_name(inputs.device),
        client_batching=width_in(federation.widths, federation.rounds),
        wall_seconds=federation.standing.wall_seconds,
        versions=versions(),
        commit=commit(),
        workers=cohort.workers.count,
    )
    for name, metric in inputs.functions.metrics.items():  # the first one
        higher = higher_is_better(metric)
        best, best_round, final = records.results(name, higher_is_better=higher)
        return replace(
            summary,
            metric=name,
            best_metric=best,
            best_metric_round=best_round,
            final_metric=final,
            higher_is_better=higher,
        )
    return summary


def _is_finished(recipe: Recipe, folder: RunFolder, mode: Mode, ranks: Ranks) -> bool:
    """Tell all ranks whether the run that is to go on has done its rounds; on rank 0, check it."""
    finished = False
    if ranks.rank == 0:
        folder.check(mode)
        if mode == "resume" and folder.recipe.exists():
            _check_same(recipe, folder)
            finished = Summary.rounds_in(folder.summary) >= recipe.train_args.comm_round
    return bool(ranks.start(int(finished)))


def _check_inputs(files: RunFolder, fingerprint: Fingerprint, ranks: Ranks) -> None:
    if ranks.rank == 0:
        check_unchanged(files, fingerprint)
    ranks.start(0)  # which ends all of them where it is another run's


def _check_same(recipe: Recipe, folder: RunFolder) -> None:
    # Of code that a folder names none runs but what the recipe has and the user allows.
    own = {key: getattr(recipe.train_args, key) for key in ("federated_optimizer", "client_method")}
    sections = read_mapping(folder.recipe, "recipe")
    train = sections.get("train_args")
    stored_names = {key: train.get(key) if isinstance(train, dict) else None for key in own}
    if left := sorted(named_objects(sections) - named_objects(recipe.model_dump())):
        raise UserError(f"--resume: {folder.recipe}: {', '.join(left)}: {ONLY_GIVEN}")
    changed: dict[str, tuple[object, object]] = {
        f"train_args.{key}": (name, own[key])
        for key, name in stored_names.items()
        if is_own(name) and name != own[key]
    }
    if not changed:
        # An entry script's recipe may name data, models and platforms that are not ours.
        allow = any(map(names_code, own.values()))
        stored = load_recipe(folder.recipe, foreign=True, allow_code=allow)
        changed = differences(stored, recipe)
        for key in ("train_args.comm_round", *PLACEMENT):
            changed.pop(key, None)
    if changed:
        raise UserError(
            "\n".join(
                f"--resume: {key}: {shown(given)}: the run in {folder.path} has {shown(before)}; "
                "only train_args.comm_round, and what places ranks on GPUs and cores, may differ"
                for key, (before, given) in changed.items()
            )
        )


def _say(recipe: Recipe, inputs: Inputs, batching: int, cohort: Cohort) -> None:
    """Put into the log what the numbers depend on."""
    _log.info("versions: %s", ", ".join(f"{name} {v}" for name, v in versions().items()))
    device, data, settings = device_name(inputs.device), inputs.data, recipe.data_args
    workers = cohort.workers
    _log.info(
        "device: %s, workers: %d (%s), clients in one set of kernels: %d",
        *(device, workers.count, workers.kind, batching),
    )
    if workers.why:
        level = logging.INFO if inputs.trainer else logging.WARNING
        _log.log(level, "one client at a time trains in each process: %s", workers.why)
    sizes = [data.client_size(client) for client in range(data.num_clients)]
    dealt, of = "", "classes"
    if isinstance(data, FederatedData) and data.train_labels.is_floating_point():
        of = "numbers a sample"
    if isinstance(data, FederatedData) and "split" in inputs.fingerprint:
        dealt = " (a split of their own)"
    elif isinstance(data, FederatedData):
        dealt = f" ({deal_name(settings.partition_method, settings.partition_sizes)})"
    _log.info(
        "data: %s, %d %s; %d clients of %d to %d samples%s",
        *(settings.dataset, data.num_classes, of),
        *(data.num_clients, min(sizes), max(sizes)),
        dealt,
    )
