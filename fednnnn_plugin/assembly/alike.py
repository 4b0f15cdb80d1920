"""What all ranks of a run must have alike; they compare it before the first round."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

import fednnnn_plugin
from fednnnn_plugin.assembly.inputs import Inputs
from fednnnn_plugin.assembly.unchanged import PLACEMENT, parts_of
from fednnnn_plugin.client.replica import named_tensors
from fednnnn_plugin.errors import OVERWRITE, RESUME, joined, printable, shown, some_of
from fednnnn_plugin.fingerprint import tensors_digest
from fednnnn_plugin.processes.ranks import AgreedError, Ranks
from fednnnn_plugin.recipe import Recipe, resolved
from fednnnn_plugin.run_folder.folder import Mode

# What a machine may have its own of: places, and what rank 0 alone follows a run with.
_OF_A_MACHINE = (*PLACEMENT, "data_args.data_cache_dir", "data_args.download")


def check_same_start(recipe: Recipe, mode: Mode, ranks: Ranks, *, only_check: bool) -> None:
    """Refuse ranks that were started with another recipe, other options or another version.

    They would mix what they compute, or wait for each other for ever.
    """
    if ranks.size == 1:
        return
    versions = {"fednnnn-plugin": fednnnn_plugin.__version__, "numpy": np.__version__}
    versions["torch"] = torch.__version__.partition("+")[0]  # what follows is of the device
    facts = {f"version of {package}": version for package, version in versions.items()}
    for key, value in resolved(recipe).items():
        if key not in _OF_A_MACHINE and not key.startswith("tracking_args."):
            facts[key] = repr(value) if isinstance(value, list | dict) else shown(value)
    facts |= {f"{RESUME}, {OVERWRITE}": mode, "command": "check" if only_check else "run"}
    _check_alike(facts, ranks, "must be the same on all ranks")


def check_same_inputs(inputs: Inputs, ranks: Ranks) -> None:
    """Refuse ranks with other data, another split or model, or other code of the user's."""
    if ranks.size == 1:
        return
    facts, data = parts_of(inputs.fingerprint), inputs.data
    sizes = [str(data.client_size(client)) for client in range(data.num_clients)]
    facts["data (sizes of the clients)"] = " ".join(sizes)
    facts["model (weights)"] = tensors_digest(named_tensors(inputs.model).items())
    must = "must be the same on all ranks: the same code, files and seeds on each machine"
    _check_alike(facts, ranks, must, say_values=False)


def _check_alike(
    facts: Mapping[str, str], ranks: Ranks, must: str, *, say_values: bool = True
) -> None:
    """Refuse, on all ranks and in a line for each key, what is not the same on all of them."""
    every = ranks.allgather(dict(facts))
    lines = []
    for key in dict.fromkeys(key for of_rank in every for key in of_rank):
        ranks_of: dict[str | None, list[int]] = {}
        for rank, of_rank in enumerate(every):
            ranks_of.setdefault(of_rank.get(key), []).append(rank)
        if len(ranks_of) == 1:
            continue
        said = [
            f"{_counted(having)} {value or 'none' if say_values else _other(place)}"
            for place, (value, having) in enumerate(ranks_of.items())
        ]
        lines.append(printable(f"{key}: {', '.join(said)}") + f": {must}")
    if lines:
        raise AgreedError(joined(lines))


def _counted(ranks: Sequence[int]) -> str:
    """Name at most eight ranks: ``ranks 1, 2 have``."""
    one = len(ranks) == 1
    return f"{'rank' if one else 'ranks'} {some_of(ranks, 8)} {'has' if one else 'have'}"


def _other(place: int) -> str:
    return "one" if place == 0 else "another"
