"""The same bits again on a GPU: where PyTorch can give them, and what is said where it cannot."""

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

_log = logging.getLogger(__name__)
_WORKSPACE, _FIXED = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"  # as cuBLAS asks for, of any streams
_WARNING = r"(?s).*deterministic"


@contextmanager
def deterministic_algorithms() -> Iterator[None]:
    """Have PyTorch choose deterministic algorithms; log each operation that has none, once.

    Restored after. The workspaces of cuBLAS are of a fixed size, unless the environment sets one,
    so that products on several streams have the same bits; cuBLAS reads it at its first product.
    """
    memory: Any = torch.utils.deterministic
    enabled = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    fill = memory.fill_uninitialized_memory
    with _logged_warnings(), ExitStack() as after:
        after.callback(torch.use_deterministic_algorithms, enabled, warn_only=warn_only)
        after.callback(setattr, memory, "fill_uninitialized_memory", fill)
        if _WORKSPACE not in os.environ:
            after.callback(os.environ.pop, _WORKSPACE, None)
            os.environ[_WORKSPACE] = _FIXED
        memory.fill_uninitialized_memory = False  # no kernel reads it
        torch.use_deterministic_algorithms(True, warn_only=True)
        yield


@contextmanager
def _logged_warnings() -> Iterator[None]:
    """Put PyTorch's warnings of what is not deterministic into the log, each text once.

    PyTorch's text names the operation, and what makes a product deterministic.
    """
    logged = set[str]()
    with warnings.catch_warnings():
        warnings.filterwarnings("always", message=_WARNING, category=UserWarning)
        others: Any = warnings.showwarning

        def show(message: Warning | str, *where: Any, **more: Any) -> None:
            text = str(message)
            if "deterministic" not in text:
                others(message, *where, **more)
            elif text not in logged:
                logged.add(text)
                _log.warning("the same run may give other bits the next time: %s", text)

        warnings.showwarning = show
        yield
