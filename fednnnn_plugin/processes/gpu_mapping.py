"""Which GPU each rank takes, in FedML's two notations.

A mapping file holds, under a key, for each host how many processes each of its GPUs takes::

    mapping_two_hosts:
      host1: [2, 1]   # ranks 0 and 1 on GPU 0, rank 2 on GPU 1
      host2: [1]      # rank 3 on GPU 0

``gpu_util_parse`` says the same as ``"host1:2,1;host2:1"``.
"""

from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from fednnnn_plugin import reading
from fednnnn_plugin.errors import UserError, printable

_HOSTS = TypeAdapter(
    dict[str, Annotated[list[Annotated[int, Field(ge=0, le=1024)]], Field(min_length=1)]]
)


def read_mapping(path: Path, key: str | None) -> list[int]:
    """Read a mapping file; return the GPU of each process, in order."""
    try:
        mappings = reading.read_mapping(path, "GPU mappings by name")
    except UserError as error:
        raise UserError("device_args.gpu_mapping_file", error) from None
    if key not in mappings:
        known = ", ".join(map(printable, mappings))
        raise UserError(
            "device_args.gpu_mapping_key", f"{key!r}: not in {path}, which has the keys {known}"
        )
    return _gpus(mappings[key], f"device_args.gpu_mapping_file: {path}: {key}")


def parse_mapping(text: str) -> list[int]:
    """Parse ``gpu_util_parse``; return the GPU of each process, in order."""
    parts = [part.partition(":") for part in text.split(";")]
    hosts = {host.strip(): counts.split(",") for host, _, counts in parts}
    once = hosts if len(hosts) == len(parts) else None
    return _gpus(once, f"device_args.gpu_util_parse: {text!r}")


def _gpus(hosts: object, where: str) -> list[int]:
    try:
        counts = _HOSTS.validate_python(hosts).values()
    except ValidationError:
        raise UserError(
            where,
            allowed=(
                "must give for each host once how many processes each of its GPUs takes, as in "
                "host1: [2, 1]"
            ),
        ) from None
    return [gpu for host in counts for gpu, processes in enumerate(host) for _ in range(processes)]
