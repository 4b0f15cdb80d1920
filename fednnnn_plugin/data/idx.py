"""MNIST's IDX files, gzip-compressed or not, read strictly and in bounded memory."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fednnnn_plugin.data.sources import open_regular, reason
from fednnnn_plugin.errors import UserError

_LONGEST_HEADER = 1_024  # bytes, gzip's own included


def read_idx(path: Path, item_shape: tuple[int, ...], most: int) -> Tensor:
    """Read unsigned bytes, uint8 [n, *item_shape] with 1 <= n <= most.

    The header is compared with ``item_shape`` and ``most`` before anything of its size is read,
    and the content must end where the header says. A file that is far larger than that is not
    read at all: behind a compressed content there may be any number of zeros.

    Raises:
        UserError: names the file and what is wrong with it.

    Source: the format is described at http://yann.lecun.com/exdb/mnist/.
    """
    try:
        with open_regular(path, 2 * (_LONGEST_HEADER + most * math.prod(item_shape))) as raw:
            content = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
            dimensions = _header(content.read(4 + 4 * (1 + len(item_shape))), len(item_shape))
            count, *shape = dimensions
            if tuple(shape) != item_shape or not 1 <= count <= most:
                raise ValueError(f"holds {dimensions}, not at most {[most, *item_shape]}")
            length = count * math.prod(item_shape)
            body = content.read(length + 1)  # reading past the end also checks gzip's checksum
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise UserError(f"{path}: not a readable IDX file: {reason(error)}") from error
    if len(body) != length:
        kind = "truncated" if len(body) < length else "longer than its header says"
        raise UserError(f"{path}: not a readable IDX file: {kind}")
    array = np.frombuffer(body, dtype=np.uint8).reshape(count, *item_shape)
    return torch.from_numpy(array.copy())


def _header(header: bytes, item_dimensions: int) -> list[int]:
    magic = bytes([0, 0, 8, 1 + item_dimensions])  # 8: unsigned byte
    if len(header) != 8 + 4 * item_dimensions or header[:4] != magic:
        raise ValueError(f"starts with {header[:4].hex(' ')!r}, not {magic.hex(' ')!r}")
    return list(struct.unpack(f">{1 + item_dimensions}I", header[4:]))
