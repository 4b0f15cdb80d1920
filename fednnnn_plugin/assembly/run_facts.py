"""What a run says of itself in its log: what the numbers depend on."""

import logging

from fednnnn_plugin.assembly.inputs import Inputs
from fednnnn_plugin.client.method import length
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.data.natural import NATURAL
from fednnnn_plugin.data.partition import partition_name
from fednnnn_plugin.followers.progress import SHOWN
from fednnnn_plugin.processes.devices import device_name, openmp_binding
from fednnnn_plugin.recipe import Recipe
from fednnnn_plugin.rounds.simulation import Federation
from fednnnn_plugin.run_folder.provenance import versions

# What a weighting gives to clients of unequal sizes, and how to choose the other.
_WEIGHTS = {
    "uniform": ("equal weights", "client_weighting: samples weights them by their samples"),
    "samples": ("weights by their samples", "client_weighting: uniform gives them equal ones"),
}

# What a run from the base recipe says that it has, where nothing else was said.
_OF_BASE = (
    *("federated_optimizer", "client_num_in_total", "client_num_per_round", "comm_round"),
    *("epochs", "local_steps", "batch_size", "client_optimizer", "learning_rate", "weight_decay"),
    *("client_weighting",),
)

_log = logging.getLogger(__name__)
_MUCH = 10  # megabytes of a client on disk


def log_base(recipe: Recipe) -> None:
    """Say what a run from the base recipe has."""
    train = vars(recipe.train_args)
    settings = [f"{key} {train[key]}" for key in _OF_BASE if train[key] is not None]
    _log.info("%s: %s; overrides change them", recipe.name, ", ".join(settings), extra=SHOWN)


def log_inputs(recipe: Recipe, inputs: Inputs, federation: Federation) -> None:
    """Put into the log what the numbers depend on."""
    _log.info("versions: %s", ", ".join(f"{name} {v}" for name, v in versions().items()))
    device, data, settings = device_name(inputs.device), inputs.data, recipe.data_args
    workers = federation.executor.workers
    _log.info(
        "device: %s, workers: %d (%s), clients in one set of kernels: %d",
        *(device, workers.count, workers.kind, federation.width),
    )
    if inputs.device.type == "cpu" and (binding := openmp_binding()):
        _log.warning(
            "%s: OpenMP binds this process to one core, on which all clients train; start it with "
            "`env -u %s` in front",
            *(", ".join(binding), " -u ".join(binding)),
        )
    layout = federation.server.layout
    method = inputs.functions.method
    kept = length(method, method.keeps, layout.size) * layout.dtype.itemsize / 1e6
    if kept:
        _log.log(
            logging.WARNING if kept >= _MUCH else logging.INFO,
            "client method: each client that has trained keeps %.3g MB on disk: up to %.3g GB for "
            "%d clients, and more between two checkpoints",
            *(kept, kept * data.num_clients / 1e3, data.num_clients),
        )
    if recipe.train_args.learning_rate_schedule and (rates := inputs.functions.rates):
        last = recipe.train_args.comm_round
        every = [rates(number) for number in range(1, last + 1)]
        _log.info(
            "train_args.learning_rate_schedule: %.4g in round 1, %.4g in round %d, at most %.4g",
            *(every[0], every[-1], last, max(every)),
            extra=SHOWN,
        )
    if workers.why:
        level = logging.INFO if inputs.trainer else logging.WARNING
        _log.log(level, "one client at a time trains in each process: %s", workers.why)
    sizes = federation.schedule.client_sizes
    comes_divided = "split" in data.fingerprint or settings.partition_method == NATURAL
    if federation.schedule.sampling == "by_size":
        _log.info(
            "train_args.client_sampling: by_size: a round's average is an unbiased estimate of "
            "that of all clients, weighted by their samples",
            extra=SHOWN,
        )
    elif comes_divided and min(sizes) != max(sizes):
        weighting = recipe.train_args.client_weighting
        _log.info(
            "train_args.client_weighting: %s: clients of %d to %d samples have %s; %s",
            *(weighting, min(sizes), max(sizes), *_WEIGHTS[weighting]),
            extra=SHOWN,
        )
    split, of = "", "classes"
    if isinstance(data, FederatedData):
        of = "numbers a sample" if data.train_labels.is_floating_point() else of
        named = partition_name(settings.partition_method, settings.partition_sizes)
        split = f" ({'a split of their own' if 'split' in data.fingerprint else named})"
    _log.info(
        "data: %s, %d %s; %d clients of %d to %d samples%s",
        *(settings.dataset, data.num_classes, of),
        *(data.num_clients, min(sizes), max(sizes)),
        split,
    )
