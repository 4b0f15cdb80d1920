"""Files of tensors in the format of safetensors, read from any path."""

import json
from pathlib import Path

import safetensors.torch
from torch import Tensor

from fednnnn_plugin.files import MEMORY, read_regular


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a file and its metadata.

    The library opens no path that is not UTF-8, so that it is given the content.

    Raises:
        OSError: the file cannot be read, or is larger than the machine's memory.
        SafetensorError: it is damaged.
    """
    content = read_regular(path, MEMORY)
    tensors = safetensors.torch.load(content)
    length = int.from_bytes(content[:8], "little")  # of the header, which is JSON
    return tensors, json.loads(content[8 : 8 + length]).get("__metadata__", {})
