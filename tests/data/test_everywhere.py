"""Divided data, drawn clients and augmentation: the same bits on any worker, rank and resume."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fednnnn_plugin as fp

from ..support.commands import Commands, quick_words
from ..support.ranks import BIN, on_ranks
from ..tiny import Content, quick_run

datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.slow

OWN = """
import torch

def noisy(x, generator):
    return (x + 9 * torch.rand(x.shape, generator=generator)).to(x.dtype)
"""
KEYS: dict[str, Any] = {"dataset": "hf:all.parquet", "data_cache_dir": "cache"}
KEYS |= {"partition_method": "natural", "partition_by": "by", "min_samples": 4, "image_size": 8}
KEYS |= {"client_num_in_total": 3, "client_num_per_round": 2, "client_sampling": "by_size"}
KEYS |= {"train_transform": "own:noisy", "precision": "fp64", "per_client": True}


def write_data(folder: Path) -> None:
    """Writers of 6, 9, 12 and 3 images of 8 × 8, of whom the last has too few."""
    (folder / "own.py").write_text(OWN)
    writers = [f"w{n}" for n in (6, 9, 12, 3) for _ in range(n)]
    images = np.random.default_rng(0).integers(0, 255, (len(writers), 8, 8), np.uint8)
    columns = {"x": [*images], "label": [i % 3 for i in range(len(writers))], "by": writers}
    types = {"x": datasets.Image(), "label": datasets.Value("int64")}
    features = datasets.Features(types | {"by": datasets.Value("string")})
    datasets.Dataset.from_dict(columns, features=features).to_parquet(folder / "all.parquet")


def test_bits_are_the_same(own_code: Path, content: Content, commands: Commands) -> None:
    """On two ranks, on one worker and on two, and of a run that was killed."""
    write_data(own_code)
    words = quick_words("ranks", "--allow-code", **KEYS | {"comm_round": 2})
    ended = on_ranks(2, BIN / "fednnnn", *words, cwd=own_code)
    assert ended.status == 0, ended
    given = {"allow_code": True, "comm_round": 2, **KEYS}
    for workers in (1, 2):
        quick_run(f"workers-{workers}", worker_num=workers, **given)
    places = (Path("ranks"), Path("workers-1"), Path("workers-2"))
    found = [(content(place), (place / "fingerprint.json").read_bytes()) for place in places]
    assert found[0] == found[1] == found[2]
    many = KEYS | {"comm_round": 10_000, "worker_num": 2}
    endless = quick_words("killed", "--allow-code", **many)
    process = commands.start(*endless, folder=own_code)
    while len([*Path("killed").glob("checkpoint/*")]) < 2 and process.is_alive():
        process.join(0.01)
    process.kill()
    commands.wait(process)
    done = max(int(path.name.split("-")[1]) for path in Path("killed", "checkpoint").iterdir())
    rounds = given | {"comm_round": done + 1}
    quick_run("killed", resume=True, **rounds)
    quick_run("whole", worker_num=1, **rounds)
    assert content(Path("killed")) == content(Path("whole"))
    assert {*fp.client_results("whole")["client"]} == {0, 1, 2}
    assert (fp.read_runs("whole")["partition_method"] == "natural").all()
