"""Divided data, drawn clients and augmentation: the same bits on any worker, rank and resume."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fednnnn_plugin as fp

from ..support.commands import Commands, quick_words
from ..support.processes import Ended
from ..support.ranks import runs_on_ranks
from ..tiny import Content, quick_run
from .test_leaf import write_leaf

datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.slow

OWN = """
import torch

def noisy(x, generator):
    return (x + 9 * torch.rand(x.shape, generator=generator)).to(x.dtype)
"""
NATURAL = {"partition_method": "natural", "min_samples": 4, "image_size": 8}
NATURAL |= {"client_num_in_total": 3, "client_num_per_round": 2, "client_sampling": "by_size"}
NATURAL |= {"per_client": True}
CASES: dict[str, dict[str, Any]] = {
    "leaf": {"dataset": "leaf", "data_dir": "leaf", "train_transform": "own:noisy"} | NATURAL,
    "table": {"dataset": "hf:all.parquet", "data_cache_dir": "cache", "partition_by": "by"}
    | NATURAL,
    "digits": {"train_transform": "own:noisy", "client_sampling": "by_size"}
    | {"partition_sizes": "power_law", "power_law_exponent": 0.5, "precision": "fp64"},
}


def write_data(folder: Path) -> None:
    """Writers of 6, 9, 12 and 3 images of 8 × 8, of whom the last has too few."""
    (folder / "own.py").write_text(OWN)
    rng = np.random.default_rng(0)
    images = {f"w{n}": rng.integers(0, 255, (n, 8, 8), np.uint8) for n in (6, 9, 12, 3)}
    users = {
        name: ((of.reshape(-1, 64) / 255).tolist(), (np.arange(len(of)) % 3).tolist())
        for name, of in images.items()
    }
    write_leaf(folder / "leaf" / "all_data" / "all.json", users)
    features = {"x": datasets.Image(), "label": datasets.Value("int64")}
    columns = {"x": [image for of in images.values() for image in of]}
    columns |= {"label": [y for _, of in users.values() for y in of]}
    columns |= {"by": [name for name, of in images.items() for _ in of]}
    features |= {"by": datasets.Value("string")}
    table = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    table.to_parquet(folder / "all.parquet")


def words(output: str, *more: str, **keys: Any) -> list[str]:
    return quick_words(output, "--allow-code", *more, **{"comm_round": 2} | keys)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """The folder in which two ranks ran all cases, and how they ended."""
    folder = tmp_path_factory.mktemp("job")
    write_data(folder)
    return folder, runs_on_ranks(2, {case: words(case, **CASES[case]) for case in CASES}, folder)


@pytest.mark.parametrize("case", CASES)
def test_bits_are_the_same(
    case: str, job: tuple[Path, Ended], own_code: Path, content: Content, commands: Commands
) -> None:
    """On two ranks, on one worker and on two, and of a run that was killed."""
    folder, ended = job
    assert ended.status == 0, ended
    write_data(own_code)
    given = {"allow_code": True, "comm_round": 2, **CASES[case]}
    for workers in (1, 2):
        quick_run(f"workers-{workers}", worker_num=workers, **given)
    places = (folder / case, Path("workers-1"), Path("workers-2"))
    found = [(content(place), (place / "fingerprint.json").read_bytes()) for place in places]
    assert found[0] == found[1] == found[2]
    endless = words("killed", **CASES[case] | {"comm_round": 10_000, "worker_num": 2})
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
    if case != "digits":
        clients = fp.client_results("whole")["client"]
        assert (fp.read_runs("whole")["partition_method"] == "natural").all()
        assert {*clients} == {0, 1, 2}
