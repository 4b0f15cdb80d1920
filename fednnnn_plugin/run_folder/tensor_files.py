"""Files of tensors in the format of safetensors, which tell whether they are whole."""

import json
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from fednnnn_plugin.files import MEMORY, read_regular
from fednnnn_plugin.fingerprint import tensors_digest

_KEY = "fednnnn_plugin"  # of the metadata: one text, as safetensors orders several by chance
_DIGEST = "digest"


def packed(tensors: Mapping[str, Tensor], about: Mapping[str, Any] = MappingProxyType({})) -> bytes:
    """Return the content of a file of tensors, with plain values ``about`` them, and a digest."""
    content = {
        name: each.detach().to("cpu", copy=True).contiguous() for name, each in tensors.items()
    }
    said = {**about, _DIGEST: _digest(content, about)}
    return safetensors.torch.save(content, {_KEY: json.dumps(said, default=str)})


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of a file, and what it says about them.

    The library opens no path that is not UTF-8, so that it is given the content.

    Raises:
        OSError: the file cannot be read, or is larger than the machine's memory.
        ValueError: it is damaged.
    """
    content = read_regular(path, MEMORY)
    length = int.from_bytes(content[:8], "little")  # of the header, which is JSON
    try:
        tensors = safetensors.torch.load(content)
        about = json.loads(json.loads(content[8 : 8 + length])["__metadata__"][_KEY])
        is_whole = about.pop(_DIGEST) == _digest(tensors, about)
    except (SafetensorError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"damaged, or of another version: {error}") from None
    if not is_whole:
        raise ValueError("its content does not match its digest")
    return tensors, about


def _digest(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> str:
    text = json.dumps({**about}, default=str) + tensors_digest(sorted(tensors.items()))
    return blake2b(text.encode(), digest_size=16).hexdigest()
