"""Which clients train in a round: uniform draws, and a sampler of the user's own."""

from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from scipy.stats import chisquare

import fednnnn_plugin as fp
from fednnnn_plugin.cli import main
from fednnnn_plugin.engine.sampling import draw_cohort
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.report.conditions import arrange
from fednnnn_plugin.seeds import generators_state, torch_generator

from .conftest import draw

RECIPE = "digits_noniid_b_fednnnn"
QUICK = {"comm_round": 3, "epochs": 1, "client_num_per_round": 3, "checkpoint_every": 1}
QUICK |= {"device_args.using_gpu": False}
KEY = "train_args.client_sampling"
# Draws from its generator and from the global ones.
MODULE = """
import random
import torch

def by_turns(number, clients, size, generator):
    first = random.randrange(clients) + int(torch.randint(clients, (1,), generator=generator))
    return [(first + number + k) % clients for k in range(size)]
"""


def test_cohorts_are_the_same_on_every_platform() -> None:
    assert draw_cohort(0, 1, 10, 4) == [1, 5, 6, 8]
    assert draw_cohort(0, 1, 100, 7) == [6, 8, 25, 48, 51, 69, 88]


@pytest.mark.parametrize("of", [lambda n: (0, n), lambda n: (n, 1)])
def test_cohorts_are_drawn_as_often(of: Callable[[int], tuple[int, int]]) -> None:
    """Over the rounds of one seed, and over the seeds of one round: all 20 threes of 6 clients."""
    seen = Counter(tuple(draw_cohort(*of(n), 6, 3)) for n in range(1, 2001))
    assert len(seen) == 20
    assert chisquare([*seen.values()]).pvalue > 0.001


def test_sampler_gets_the_round_and_its_generator() -> None:
    told: list[Any] = []

    def last(*arguments: Any) -> list[int]:
        told.append(arguments)
        return [9, 3, 4]

    assert draw_cohort(5, 7, 10, 3, last) == [3, 4, 9]
    (number, num_clients, cohort_size, generator) = told[0]
    assert (number, num_clients, cohort_size) == (7, 10, 3)
    assert torch.equal(generator.get_state(), torch_generator(5, "cohort", 7).get_state())


def test_sampler_draws_follow_from_seed_and_round() -> None:
    def drawn(_number: int, clients: int, size: int, generator: torch.Generator) -> Any:
        shift = int(1e6 * draw())  # by the global generators
        return (torch.randperm(clients, generator=generator)[:size] + shift) % clients

    before = generators_state()
    cohorts = {
        (seed, number): draw_cohort(seed, number, 50, 5, drawn)
        for seed in range(3)
        for number in range(3)
    }
    assert generators_state() == before
    assert len({str(cohort) for cohort in cohorts.values()}) == 9
    assert draw_cohort(2, 1, 50, 5, drawn) == cohorts[2, 1]


@pytest.mark.parametrize(
    "given",
    [
        (4, 0, 2),
        {4, 0, 2},
        range(0, 6, 2),
        np.array([4, 2, 0], np.uint8),
        torch.tensor([2, 4, 0], dtype=torch.int32),
        [np.int64(0), torch.tensor(2), 4],
        (client for client in (0, 4, 2)),
    ],
)
def test_sampler_may_return_any_form(given: Any) -> None:
    assert draw_cohort(0, 1, 6, 3, lambda *_: given) == [0, 2, 4]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([0, 1], "2 clients"),
        ([], "0 clients"),
        (range(4), "more than 3 clients"),
        (count(), "more than 3 clients"),
        ([0, 1, 1], "client 1 twice"),
        ([0, 1, 6], "client 6"),
        ([0, -1, 2], "client -1"),
        ([0, 1.0, 2], "client 1.0"),
        ([0, True, 2], "client true"),
        (torch.tensor([True, False, True]), "client true"),
        (np.eye(3), "client a list"),
        ("012", "client '0'"),
        (3, "3"),
        (None, "null"),
    ],
)
def test_sampler_must_return_different_clients(given: Any, told: str) -> None:
    allowed = "must be 3 different clients, whole numbers of 0 to 5"
    with pytest.raises(UserError) as refused:
        draw_cohort(0, 4, 6, 3, lambda *_: given)
    assert str(refused.value) == f"{KEY}: round 4: {told}: {allowed}"


@pytest.fixture
def start(own_code: Path) -> Callable[..., fp.Run]:
    def run(output: str, sampler: Any, *, resume: bool = False, **changed: Any) -> fp.Run:
        settings = QUICK | changed
        return fp.run(
            RECIPE, client_sampling=sampler, overrides=settings, output=output, resume=resume
        )

    return run


def test_sampler_that_is_uniform_is_the_default(start: Any, content: Any) -> None:
    def alike(_number: int, clients: int, size: int, generator: torch.Generator) -> torch.Tensor:
        return torch.randperm(clients, generator=generator)[:size]

    start("plain", None)
    start("named", "uniform")
    start("own", alike)
    assert content(Path("plain")) == content(Path("named")) == content(Path("own"))
    assert not Path("plain/fingerprint.json").exists()
    arranged = arrange(fp.read_runs("plain", "own"))
    assert arranged["label"].nunique() == 2  # a report keeps them apart


def turns(shift: int) -> Callable[..., list[int]]:
    return lambda number, clients, size, _: [(shift + number + k) % clients for k in range(size)]


def test_sampler_is_kept_over_a_stop(start: Any, content: Any) -> None:
    start("whole", turns(3))
    start("parted", turns(3), comm_round=1)
    start("parted", turns(3), resume=True)
    assert content(Path("parted")) == content(Path("whole"))
    for other, told in ((turns(4), r"^resume=True: sampler \(code\)"), (None, rf": {KEY}: ")):
        with pytest.raises(fp.UserError, match=told):
            start("parted", other, comm_round=4, resume=True)
    assert content(Path("parted")) == content(Path("whole"))


def test_sampler_that_fails_ends_the_run(start: Any) -> None:
    for broken in (lambda: [], lambda *_: [0], 3):
        with pytest.raises(fp.UserError, match=rf"^{KEY}: ") as refused:
            start("run", broken)
        assert "\n" not in str(refused.value)
        assert not Path("run").exists()
    with pytest.raises(fp.RunError, match=rf"^{KEY}: round 3: raised ZeroDiv") as ended:
        start("run", lambda number, *_: [0, 1, 6 // (3 - number)])
    assert isinstance(ended.value.__cause__, ZeroDivisionError)
    assert fp.read_runs("run")["round"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("name", "more", "told"),
    [
        ("mine:absent", ("--allow-code",), "absent is not there"),
        ("<object>:by_turns", (), "given as an object"),
        ("samples", (), "must be uniform, or MODULE:FUNCTION"),
    ],
)
def test_sampler_by_a_wrong_name_is_refused(
    own_code: Path, name: str, more: tuple[str, ...], told: str
) -> None:
    Path("mine.py").write_text(MODULE)
    ended = CliRunner().invoke(main, ["run", RECIPE, f"--set={KEY}={name}", *more])
    assert (ended.exit_code, ended.stderr.count("\n")) == (2, 1), ended.stderr
    assert KEY in ended.stderr
    assert told in ended.stderr
    assert not Path("runs").exists()


def test_sampler_by_name_gives_the_same_bytes(start: Any, content: Any) -> None:
    Path("mine.py").write_text(MODULE)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(MODULE, namespace)
    start("object", namespace["by_turns"])
    settings = QUICK | {"client_sampling": "mine:by_turns"}
    fp.run(RECIPE, overrides=settings, output="name", allow_code=True)
    assert content(Path("object")) == content(Path("name"))
