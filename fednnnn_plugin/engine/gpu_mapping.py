"""Which GPU each rank takes, in FedML's two notations.

A mapping file holds, under a key, for each host how many processes each of its GPUs takes::

    mapping_two_hosts:
      host1: [2, 1]   # ranks 0 and 1 on GPU 0, rank 2 on GPU 1
      host2: [1]      # rank 3 on GPU 0

``gpu_util_parse`` says the same as ``"host1:2,1;host2:1"``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from fednnnn_plugin.engine.files import open_regular
from fednnnn_plugin.errors import UserError, reason
from fednnnn_plugin.recipe.reading import MAX_BYTES, NotReadableError, read_yaml
from fednnnn_plugin.recipe.wording import printable


def gpu_of_rank(gpus: Sequence[int], rank: int, size: int, where: str) -> int:
    """Return a rank's entry of a mapping.

    Raises:
        UserError: the mapping is not as long as the world.
    """
    if len(gpus) != size:
        raise UserError(f"{where}: it places {len(gpus)} processes: must be {size}, as launched")
    return gpus[rank]


def read_mapping(path: Path, key: str | None) -> list[int]:
    """Read a mapping file; return the GPU of each process, in order.

    Raises:
        UserError: the file or the key is missing, or it does not have the form above.
    """
    where = f"device_args.gpu_mapping_file: {path}"
    try:
        with open_regular(path, MAX_BYTES) as file:
            content = read_yaml(file.read(MAX_BYTES).decode())
    except (OSError, UnicodeDecodeError, NotReadableError) as error:
        why = reason(error) if isinstance(error, OSError) else "not YAML"
        raise UserError(f"{where}: cannot be read: {why}") from None
    if not isinstance(content, Mapping) or key not in content:
        names = map(str, content) if isinstance(content, Mapping) else ["none"]
        known = ", ".join(map(printable, names))
        raise UserError(
            f"device_args.gpu_mapping_key: {key!r}: not in {path}, which has the keys {known}"
        )
    return _gpus(content[key], f"{where}: {key}")


def parse_mapping(text: str) -> list[int]:
    """Parse ``gpu_util_parse``; return the GPU of each process, in order.

    Raises:
        UserError: it does not have the form above.
    """
    hosts: dict[str, list[int | str]] = {}
    for part in text.split(";"):
        host, _, counts = part.partition(":")
        hosts[host.strip()] = [
            int(count) if re.fullmatch(r"\s*\d{1,4}\s*", count) else count
            for count in counts.split(",")
        ]
    return _gpus(hosts, f"device_args.gpu_util_parse: {text!r}")


def _gpus(hosts: object, where: str) -> list[int]:
    if isinstance(hosts, Mapping) and all(map(_is_counts, hosts.values())):
        return [
            gpu
            for counts in hosts.values()
            for gpu, processes in enumerate(counts)
            for _ in range(processes)
        ]
    raise UserError(
        f"{where}: must give for each host how many processes each of its GPUs takes, such as "
        "host1: [2, 1]"
    )


def _is_counts(counts: object) -> bool:
    return (
        isinstance(counts, list)
        and bool(counts)
        and all(type(count) is int and 0 <= count <= 1024 for count in counts)
    )
