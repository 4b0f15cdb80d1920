"""Every random draw comes from a generator seeded by (seed, purpose, round, client)."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def generators_state() -> object:
    """Return what tells whether the global generators have drawn since: compare two."""
    numpy_state = np.random.get_state(legacy=False)  # noqa: NPY002
    torchs = [torch.get_rng_state()]
    if torch.cuda.is_initialized():
        torchs += torch.cuda.get_rng_state_all()
    return random.getstate(), str(numpy_state), [state.tolist() for state in torchs]


def derive_seed(seed: int, purpose: str, round_number: int = 0, client: int = 0) -> int:
    """Return a 63-bit seed for one purpose: BLAKE2b of the tuple, the same on every platform."""
    text = f"{seed}/{purpose}/{round_number}/{client}"
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def torch_generator(
    seed: int, purpose: str, round_number: int = 0, client: int = 0
) -> torch.Generator:
    """Return a CPU generator of its own."""
    generator = torch.Generator()
    generator.manual_seed(derive_seed(seed, purpose, round_number, client))
    return generator


@contextmanager
def isolated_generators(
    seed: int, purpose: str, round_number: int = 0, client: int = 0
) -> Iterator[None]:
    """Seed Python's, NumPy's and torch's global generators inside, and restore them after.

    For code that is not ours and draws from them: a model's initial weights or dropout, a user's
    trainer, a shuffling ``DataLoader``. The generators are the process's own: one at a time. Of
    GPUs they are those that have been started.
    """
    derived = derive_seed(seed, purpose, round_number, client)
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices):
            random.seed(derived)
            np.random.seed(derived % 2**32)  # noqa: NPY002
            # torch.manual_seed formats the stack for each kind of accelerator that may start later.
            torch.default_generator.manual_seed(derived)
            if devices:
                torch.cuda.manual_seed_all(derived)
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
