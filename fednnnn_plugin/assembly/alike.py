"""What all ranks of a run must have alike; they compare it before the first round."""

from collections.abc import Mapping

import numpy as np
import torch

import fednnnn_plugin
from fednnnn_plugin.assembly.inputs import Inputs
from fednnnn_plugin.assembly.unchanged import PLACEMENT, parts_of, text_of
from fednnnn_plugin.client.replica import named_tensors
from fednnnn_plugin.errors import OVERWRITE, RESUME, UserError, UserErrors, printable
from fednnnn_plugin.fingerprint import tensors_digest
from fednnnn_plugin.processes.ranks import Ranks, agreed
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
    facts: dict[str, object] = {f"version of {name}": number for name, number in versions.items()}
    for key, value in resolved(recipe).items():
        if key not in _OF_A_MACHINE and not key.startswith("tracking_args."):
            facts[key] = value
    facts |= {f"{RESUME}, {OVERWRITE}": mode, "command": "check" if only_check else "run"}
    _check_alike(facts, ranks, "must be the same on all ranks")


def check_same_inputs(inputs: Inputs, ranks: Ranks) -> None:
    """Refuse ranks with other data, another split or model, other code or other CPUs."""
    if ranks.size == 1:
        return
    data, facts = inputs.data, dict[str, object](parts_of(inputs.fingerprint))
    facts["device (the CPU where no GPU is visible)"] = inputs.device.type
    if inputs.device.type == "cpu":
        instructions = torch.backends.cpu.get_cpu_capability()
        facts["CPU instructions (ATEN_CPU_CAPABILITY limits them)"] = instructions
    clients = range(data.num_clients)
    facts["data (sizes of the clients)"] = [*map(data.client_size, clients)]
    facts["model (weights)"] = tensors_digest(named_tensors(inputs.model).items())
    must = "must be the same on all ranks: the same code, files and seeds on each machine"
    _check_alike(facts, ranks, must)


def _check_alike(facts: Mapping[str, object], ranks: Ranks, must: str) -> None:
    """Refuse, on all ranks, what a rank has otherwise than rank 0."""
    first = ranks.broadcast_object(facts)
    with agreed(ranks):
        if differing := [
            UserError(printable(key), f"{text_of(own)}, rank 0 has {text_of(other)}", must)
            for key in {**first, **facts}
            for own, other in [(facts.get(key), first.get(key))]
            if repr(own) != repr(other)  # nan is not equal to nan
        ]:
            raise UserErrors(differing)
