"""The parts of the engine, as a recipe asks for them; nothing below sees a recipe."""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from pydantic import BaseModel

from fednnnn_plugin.assembly.functions import Functions
from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.client.loss import CROSS_ENTROPY, LOSSES
from fednnnn_plugin.data.federated import FederatedData, load_federated
from fednnnn_plugin.data.own_data import UserData
from fednnnn_plugin.errors import OVERRIDES, OVERWRITE, RESUME, UserError
from fednnnn_plugin.files import user_path
from fednnnn_plugin.followers.follower import Follower
from fednnnn_plugin.followers.trackers import WeightsAndBiases
from fednnnn_plugin.processes.devices import choose_gpu, visible_gpus
from fednnnn_plugin.processes.gpu_mapping import parse_mapping, read_mapping
from fednnnn_plugin.processes.ranks import Ranks
from fednnnn_plugin.reading import read_yaml
from fednnnn_plugin.recipe import Recipe, dump_recipe, overridden_keys
from fednnnn_plugin.recipe.data_spec import data_spec
from fednnnn_plugin.rounds.evaluation import higher_is_better
from fednnnn_plugin.rounds.loaders import LoaderData
from fednnnn_plugin.rounds.schedule import Schedule
from fednnnn_plugin.rounds.stopping import ACCURACY, LOSS, STOP, WORST_10, Stop
from fednnnn_plugin.run_folder.folder import Mode
from fednnnn_plugin.run_folder.round_watch import Thresholds
from fednnnn_plugin.server.sum import BinnedSum
from fednnnn_plugin.user_code import HUB, is_own

_log = logging.getLogger(__name__)


def located(recipe: Recipe, here: Path) -> Recipe:
    """Return a recipe with relative paths resolved in ``here``, whatever user code changes to."""

    def absolute(section: BaseModel, *keys: str) -> BaseModel:
        paths = {key: getattr(section, key) for key in keys}
        given = {key: path for key, path in paths.items() if path and not path.startswith("~")}
        return section.model_copy(update={key: str(here / path) for key, path in given.items()})

    data = absolute(recipe.data_args, "data_cache_dir", "data_dir")
    named = recipe.data_args.dataset
    if named.startswith(HUB) and (place := here / named.removeprefix(HUB)).exists():
        data = data.model_copy(update={"dataset": f"{HUB}{place}"})
    device = absolute(recipe.device_args, "gpu_mapping_file")
    found = {"data_args": data, "device_args": device}
    if not is_own(recipe.train_args.client_availability):
        found["train_args"] = absolute(recipe.train_args, "client_availability")
    return recipe.model_copy(update=found)


def run_folder(recipe: Recipe, output: Path | str | None = None, here: Path | None = None) -> Path:
    """Return the folder that was asked for, else ``runs/<recipe>-seed<seed>``; it is absolute.

    A relative one is in ``here``, by default the working directory, which user code may change.
    """
    here = here or Path.cwd()
    if output is None:
        return here / "runs" / f"{recipe.name}-seed{recipe.common_args.random_seed}"
    return here / user_path(output)


def run_mode(*, resume: bool, overwrite: bool) -> Mode:
    """Return how a run is to begin."""
    if resume and overwrite:
        raise UserError(f"{RESUME}, {OVERWRITE}", "give one of them")
    return "resume" if resume else "overwrite" if overwrite else "new"


def load_data(
    recipe: Recipe, ranks: Ranks, *, brought: UserData | None = None, any_labels: bool = False
) -> FederatedData:
    """Load a recipe's data; one rank of each machine downloads and decodes, then the others.

    ``brought`` are custom data in the place of what the recipe names. The labels are those of the
    recipe's loss, or ``any_labels`` where another may be used.
    """
    spec = replace(data_spec(recipe), loss="") if any_labels else data_spec(recipe)
    with ranks.one_before_others() as first:
        return load_federated(spec if first else replace(spec, download=False), brought)


def rank_device(recipe: Recipe, ranks: Ranks) -> torch.device:
    """Return the device of this rank: the mapped GPU, the only GPU asked for, or the CPU.

    Several ranks without a mapping take the visible GPUs of their machine in turn.
    """
    settings, say = recipe.device_args, ranks.rank == 0
    if not settings.wants_gpu:
        return torch.device("cpu")
    if settings.gpu_util_parse is not None:
        where, mapping = "gpu_util_parse", parse_mapping(settings.gpu_util_parse)
    elif settings.gpu_mapping_file is not None:
        path = user_path(settings.gpu_mapping_file)
        where, mapping = "gpu_mapping_file", read_mapping(path, settings.gpu_mapping_key)
    elif ranks.size > 1 and (visible := visible_gpus()):
        return choose_gpu(ranks.local_rank % visible, say=say)
    else:
        return choose_gpu(settings.gpu_id, say=say)
    if len(mapping) != ranks.size:
        raise UserError(
            f"device_args.{where}",
            f"it places {len(mapping)} processes",
            f"must be {ranks.size}, as launched",
        )
    return choose_gpu(mapping[ranks.rank], f"{where}: GPU of process {ranks.rank}", say=say)


def local_sgd(recipe: Recipe, functions: Functions, num_classes: int | None = None) -> LocalSGD:
    """Return the clients' training, on data of so many classes if that is known."""
    train, loss = recipe.train_args, functions.loss
    if loss not in LOSSES.values():
        loss = replace(loss, num_classes=num_classes)
    return LocalSGD(
        epochs=train.epochs,
        local_steps=train.local_steps,
        batch_size=train.batch_size,
        learning_rate=train.learning_rate,
        weight_decay=train.weight_decay,
        prox_mu=functions.method.prox_mu,
        precision=train.precision,
        schedule=functions.rates,
        max_grad_norm=train.max_grad_norm,
        optimizer=functions.optimizer,
        loss=loss,
    )


def schedule(
    recipe: Recipe,
    data: FederatedData | LoaderData,
    least_groups: int,
    functions: Functions,
    *,
    tested_by_own: bool,
) -> Schedule:
    """Return what each round does, of ``least_groups`` groups.

    Settings that do not fit the data are refused. A custom trainer's or tester's accuracy, of a run
    that is ``tested_by_own``, may be in per cent.
    """
    train, validation = recipe.train_args, recipe.validation_args
    if train.client_num_per_round > BinnedSum.MAX_TERMS:
        raise UserError(
            "train_args.client_num_per_round",
            train.client_num_per_round,
            f"must be at most {BinnedSum.MAX_TERMS}: so many add up exactly",
        )
    sizes = tuple(data.client_size(client) for client in range(data.num_clients))
    return Schedule(
        rounds=train.comm_round,
        client_sizes=sizes,
        cohort_size=train.client_num_per_round,
        seed=recipe.common_args.random_seed,
        weighting=train.client_weighting,
        sampling="uniform" if functions.sampler is not None else train.client_sampling or "uniform",
        sampler=functions.sampler,
        available=functions.available,
        test_every=validation.frequency_of_the_test,
        test_served=validation.test_served,
        per_client=validation.per_client or False,
        max_client_failures=train.max_client_failures,
        max_client_norm=train.max_client_norm,
        least_groups=least_groups,
        stop=_stop(recipe, data, functions, tested_by_own=tested_by_own),
        rates=functions.rates,
        equal_work=train.local_steps is not None,
    )


def _stop(
    recipe: Recipe, data: FederatedData | LoaderData, functions: Functions, *, tested_by_own: bool
) -> Stop | None:
    """Return what may end the run before its last round."""
    given = recipe.validation_args.stop
    if given is None:
        return None
    metric = given.get("metric") or next(iter(functions.metrics), None)
    labels = data.train_labels if isinstance(data, FederatedData) else None
    numbers = labels is not None and labels.is_floating_point()
    of_classes = metric in (ACCURACY, WORST_10) and metric not in functions.metrics
    if numbers and of_classes:
        raise UserError(
            STOP,
            f"metric: {metric}: labels that are numbers have none",
            f"must be {LOSS}, or one of validation_args.metrics",
        )
    if metric is None:  # of loaders the labels are not known
        of_classes = not numbers and functions.loss is CROSS_ENTROPY
    elif metric == ACCURACY:  # scikit-learn's by its name
        of_classes = of_classes or ACCURACY in (recipe.validation_args.metrics or ())
    target = given.get("target")
    if of_classes and not tested_by_own and target is not None and not 0 < target <= 1:
        must = f"must be an accuracy, above 0 and at most 1; for the loss name metric: {LOSS}"
        raise UserError(STOP, f"target: {target:g}", must)
    own = functions.metrics.get(metric or "")
    higher = None if own is None else higher_is_better(own)
    return Stop(**{**given, "metric": metric, "higher_is_better": higher})


def check_services(recipe: Recipe, overrides: Sequence[str], *, by_fedml: bool) -> None:
    """Refuse a service that the recipe's file asks for, without a word of the user's.

    A recipe may be a stranger's: it is the user who says whether numbers leave the machine. That
    word is an override, or for FedML's service, ``by_fedml``, the command ``fedml run``.
    """
    for key, asked in (
        ("tracking_args.enable_wandb", recipe.tracking_args.enable_wandb),
        ("common_args.using_mlops", recipe.common_args.using_mlops and not by_fedml),
    ):
        if asked and key not in overridden_keys(overrides):
            by_command = ", or start `fedml run`" if key.startswith("common") else ""
            raise UserError(
                key,
                "true: the recipe asks to send the run's numbers to a service",
                f"say so yourself with {OVERRIDES} {key}=true{by_command}; or {OVERRIDES} {key}"
                "=false",
            )


def thresholds(recipe: Recipe) -> Thresholds:
    """Return above what a round is unusual; where long updates are clipped, none is too long."""
    tracking, limited = recipe.tracking_args, recipe.train_args.max_client_norm is not None
    ratio = math.inf if limited else tracking.warn_norm_ratio
    return Thresholds(ratio, tracking.warn_alignment, tracking.warn_weight_share)


def recipe_followers(recipe: Recipe, mlops: Callable[[], Follower] | None = None) -> list[Follower]:
    """Return what follows a run as its recipe asks; ``mlops`` makes what reports to FedML."""
    settings, followers = recipe.tracking_args, list[Follower]()
    if settings.enable_wandb:
        followers.append(
            WeightsAndBiases(
                config=read_yaml(dump_recipe(recipe)),
                name=settings.run_name,
                project=settings.wandb_project,
                entity=settings.wandb_entity,
            )
        )
    if recipe.common_args.using_mlops:
        if mlops:
            followers.append(mlops())
        else:
            _log.warning(
                "common_args.using_mlops: true: only `fedml run` reports to FedML's service; where "
                "FedML is installed, `fednnnn run` starts it"
            )
    return followers
