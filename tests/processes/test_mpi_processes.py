"""Real processes under ``mpirun``: the same bytes on any number of ranks, and no hang."""

import json
import os
import platform
import re
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from filelock import FileLock

from fednnnn_plugin.cli import main

from ..support.commands import RECIPE, quick_words
from ..support.processes import WATCHDOG, Ended
from ..support.ranks import BIN, on_ranks, runs_on_ranks, started
from ..tiny import OWN

pytestmark = pytest.mark.slow

FEDNNNN, FEDAVG = "digits_noniid_ub_fednnnn", "digits_noniid_b_fedavg"
QUICK = {"comm_round": 2, "client_num_per_round": 4, "checkpoint_every": 10}
MINE = """
import logging
import os
import torch
from fednnnn_plugin.client.group_sgd import GroupSGD
from torch import nn
from torch.nn import functional as F
from fednnnn_plugin import ClientMethod
from own import Drag, by_turns, convolution

def rank():
    return int(os.environ.get("OMPI_COMM_WORLD_RANK", 0))

def net(num_classes):
    return nn.Sequential(nn.Dropout(), convolution(num_classes))

def data():
    assert rank() == 0, "rank 1 lost its data"
    images, labels = torch.zeros(900, 1, 8, 8), torch.arange(900) % 10
    return images, labels, images, labels

def wrong(num_classes):
    return nn.Linear(3, 3)

def picky(outputs, labels):
    if outputs.requires_grad and (labels == 7).any():
        raise ArithmeticError("a seven")
    return F.cross_entropy(outputs, labels)

def failing(outputs, labels):  # in training, not at the trial before it, which is of two samples
    return picky(outputs, 0 * labels + 7 * (len(labels) > 2))

class Noisy(Drag):
    def finish_client(self, local):
        held = [handler for handler in logging.getLogger().handlers if hasattr(handler, "buffer")]
        if local.update.any():  # this is no trial before the run
            assert all(not handler.buffer for handler in held), "models in records that none reads"
        logging.getLogger("mine").warning("said")
        return super().finish_client(local)

class Quiet(ClientMethod):
    keeps = ("last",)

    def correction(self, sent, kept):
        return 0.1 * kept["last"]

    def finish_client(self, local):
        return {"last": local.update}, {}

class Broken(Drag):
    def finish_client(self, local):
        if rank() == 1 and local.update.any():
            raise ArithmeticError("rank 1 lost its mind")
        return super().finish_client(local)

def short_of_memory(self, start, orders, *given, **more):
    staged = hasattr(orders, "positions")
    if (orders.positions.shape[1] if staged else len(orders)) > 2:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
    return train(self, start, orders, *given, **more)

train = GroupSGD.train
if rank() == 1:
    GroupSGD.train = short_of_memory
"""
DIFFERING = """
import os
import torch
from torch import nn

class Net(nn.Sequential):
    if "BEHAVIOUR" in os.environ:
        def forward(self, images):
            return 2 * super().forward(images)

def net(num_classes, note=""):
    made = Net(nn.Flatten(), nn.Linear(64, num_classes))
    made[1].bias.data += int(os.environ.get("WEIGHTS", 0))
    return made

def data():
    images, labels = torch.zeros(900, 1, 8, 8), torch.arange(900) % 10
    return images + int(os.environ.get("PIXELS", 0)), labels, images, labels
"""
MODULES = {
    "mine": MINE,
    "differing": DIFFERING,
    "own": OWN,
    "server_lion": (Path(__file__).parents[1] / "support" / "server_lion.py").read_text(),
}
# What the ranks run: a recipe, and its settings.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "fedexp": ("digits_noniid_b_fedexp", {"client_num_per_round": 2}),  # one rank has no client
    "noisy": (FEDAVG, {"client_method": "mine:Noisy"}),
    "memory": (
        FEDNNNN,  # eight clients, so that rank 1 has a group of four
        {"client_num_per_round": 8, "client_batching": 4, "client_sampling": "mine:by_turns"}
        | {"per_client": True, "per_class": True},
    ),
    "model": (
        FEDNNNN,
        {"model": "mine:net", "client_method": "mine:Quiet", "per_client": "end"},
    ),
    "failures": (FEDNNNN, {"loss": "mine:picky", "max_client_failures": 3}),
    "options": (
        FEDAVG,
        {"client_num_in_total": 4, "loss": "mse", "client_optimizer": "adam"}
        | {"client_optimizer_args": {"betas": [0.8, 0.95]}, "learning_rate_decay": 0.5}
        | {"max_grad_norm": 0.1, "metrics": ["r2", "own:worst"], "checkpoint_every": 1}
        | {"dataset": "own:numbers", "data_args.shift": 0.5}
        | {"model": "own:Net", "model_args.width": 4}
        | {"comm_round": 3, "stop": {"metric": "loss", "patience": 1, "min_delta": 9}},
    ),
    "rule": (
        FEDAVG,
        {"federated_optimizer": "server_lion:ServerLion", "server_lion_lr": 0.002}
        | {"epochs": None, "local_steps": 3}
        | {"learning_rate_schedule": {"name": "cosine", "warmup_rounds": 1}},
    ),
}
# Methods of ours, and data divided by their owners: two rounds on three ranks, the third on two.
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "scaffold": (FEDNNNN, {"client_method": "scaffold", "client_weighting": "samples"}),
    "fednova": (FEDAVG, {"client_method": "fednova", "partition_method": "dirichlet"}),
    "fedsam": (FEDAVG, {"client_method": "fedsam", "sam_rho": 0.1}),
    "fedcm": (FEDAVG, {"client_method": "fedcm", "fedcm_beta": 0.5}),
    "feddyn": (FEDAVG, {"federated_optimizer": "FedDyn", "feddyn_alpha": 0.1}),
}
if find_spec("datasets"):
    METHODS["natural"] = (
        RECIPE,
        {"dataset": "hf:all.parquet", "data_cache_dir": "cache", "image_size": 8}
        | {"partition_method": "natural", "partition_by": "by", "min_samples": 4}
        | {"client_num_in_total": 3, "client_num_per_round": 2, "client_sampling": "by_size"}
        | {"train_transform": "own:noisy", "per_client": True},
    )
# Those that train by a user's code: in forks.
IN_FORKS = ("model", "noisy", "failures", "options", "natural")
# Of a user's model in forks, and of what clients keep.
OF_EVERY_PYTHON = ("model", "scaffold")


def run_words(output: str, *more: str, recipe: str = FEDNNNN, **settings: Any) -> list[str]:
    """The arguments of ``fednnnn``."""
    return quick_words(output, "--allow-code", *more, recipe=recipe, **QUICK | settings)


def write_modules(folder: Path) -> None:
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(text)


def write_images(folder: Path) -> None:
    """Write those of owners of 6, 9, 12 and 3 images of 8 × 8, of whom the last has too few."""
    import datasets  # takes a second

    owners = [f"w{n}" for n in (6, 9, 12, 3) for _ in range(n)]
    images = np.random.default_rng(0).integers(0, 255, (len(owners), 8, 8), np.uint8)
    columns = {"x": [*images], "label": [i % 3 for i in range(len(owners))], "by": owners}
    types = {"x": datasets.Image(), "label": datasets.Value("int64")}
    features = datasets.Features(types | {"by": datasets.Value("string")})
    datasets.Dataset.from_dict(columns, features=features).to_parquet(folder / "all.parquet")


def alone(*words: str) -> None:
    """Run in this process and folder."""
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output


@pytest.fixture(scope="module")
def job(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Ended]:
    """The folder in which three ranks ran all of :data:`CASES`, and how they ended.

    In the last run each rank's one client fails, which is one more than may. Two ranks have gone on
    with :data:`METHODS`. Cases that are not to be tested are left out.
    """
    folder = tmp_path_factory.mktemp("job")
    write_modules(folder)
    commands, more = {}, {}
    asked = {item.callspec.id for item in request.session.items if hasattr(item, "callspec")}
    for name, (recipe, settings) in (CASES | METHODS).items():
        if name not in asked:
            continue
        commands[name] = run_words(name, recipe=recipe, **settings)
        if name in METHODS:
            more[name] = run_words(name, "--resume", recipe=recipe, **settings | {"comm_round": 3})
    if "natural" in commands:
        write_images(folder)
    failing = {"loss": "mine:failing", "client_num_per_round": 3, "max_client_failures": 2}
    commands["failing"] = run_words("failing", **failing)
    ended = runs_on_ranks(3, commands, folder)
    assert not more or runs_on_ranks(2, more, folder).status == 0
    return folder, ended


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.every_python) if case in OF_EVERY_PYTHON else case
        for case in CASES | METHODS
    ],
)
def test_ranks_give_the_same_bytes(
    case: str, job: tuple[Path, Ended], own_code: Path, content: Any
) -> None:
    """What is a user's: each rank's clients train in processes of their own."""
    folder, ended = job
    assert (ended.status, ended.stderr.count("3 of its clients failed")) == (1, 1), ended
    write_modules(own_code)
    if case == "natural":
        write_images(own_code)
    recipe, settings = (CASES | METHODS)[case]
    *rounds, closing = (folder / f"{case}.out").read_text().splitlines()
    done, ranks = ((1, 2), 3) if case in CASES else ((3,), 2)
    if case in METHODS:
        settings = settings | {"comm_round": 3}
    of = settings.get("comm_round", 2)
    assert [line.split()[1] for line in rounds] == [f"{number}/{of}" for number in done]
    assert closing.startswith(f"{case}: ")
    if case == "memory":  # which rank 1 lacked: all trained anew in groups of half the width
        settings = settings | {"client_batching": 2}
    alone(*run_words("alone", recipe=recipe, **settings))
    found = content(folder / case)
    assert found == content(own_code / "alone")
    assert any(record["rejected"] for record in found[2]) == (case == "failures")
    summary = json.loads((folder / case / "summary.json").read_text())
    assert (summary["backend"], summary["ranks"]) == ("MPI", ranks)
    assert case != "memory" or summary["client_batching"] == 2
    log = (folder / case / "fedml.log").read_text()
    assert ("(processes)" in log) == (case in IN_FORKS)


def test_error_of_one_rank_is_said_once(own_code: Path) -> None:
    """By the one that has it, which then ends all."""
    write_modules(own_code)
    (own_code / "a lock").mkdir()

    def check(words: list[str], status: int, said: str) -> None:
        ended = on_ranks(2, BIN / "fednnnn", *words)
        assert (ended.status, ended.stderr.count(said)) == (status, 1), ended
        assert ("rank 1 on " in ended.stderr) == ("rank 1 lost" in said)

    jobs = (
        (run_words("a lock"), 2, "another run is writing to it"),
        (run_words("none", dataset="mine:data"), 2, "rank 1 lost its data"),
        (run_words("some", client_method="mine:Broken"), 1, "rank 1 lost its mind"),
    )
    with FileLock(own_code / "a lock" / ".lock"), ThreadPoolExecutor(2) as threads:
        list(threads.map(check, *zip(*jobs, strict=True)))
    assert not Path("none").exists()


NOTE = 80 * "a"  # longer than what a message shows of it
# What rank 1 of three has otherwise: words of its command, or variables of its environment.
DIFFERENT = {
    "train_args.learning_rate: ": ["--set=learning_rate=0.5"],
    "train_args.comm_round: ": ["--set=comm_round=3"],
    "validation_args.frequency_of_the_test: ": ["--set=frequency_of_the_test=2"],
    "common_args.random_seed: ": ["--set=random_seed=7"],
    "train_args.precision: ": ["--set=precision=fp64"],
    "validation_args.metrics: ": ["--set=metrics=[f1_macro]"],
    "model_args.note: ": [f"--set=model_args.note={NOTE}!"],
    "--resume, --overwrite: ": ["--overwrite"],
    "version of fednnnn-plugin: ": {"VERSION": "99"},
    "CPU instructions ": {"INSTRUCTIONS": "AVX9"},
    "model (code): ": {"BEHAVIOUR": "other"},
    "model (weights): ": {"WEIGHTS": "1"},
    "data (tensors): ": {"PIXELS": "1"},
}
# What is wrong on all of them.
COMMON = {
    "absent.yaml: ": ["run", "absent.yaml"],
    "model_args.model: mine:wrong": run_words("none", model="mine:wrong"),
}
# Each rank ends by itself, so that one job has them all: all must come to their end.
REFUSED = """
import json, os, sys
from pathlib import Path
import fednnnn_plugin, torch
from fednnnn_plugin.cli import main
from fednnnn_plugin.processes import job, mpi_ranks

sys.path.insert(0, "")
job._TIME_TO_SAVE, mpi_ranks.MpiRanks.abort = 0.0, lambda *_: None
mine, version = os.environ["OMPI_COMM_WORLD_RANK"], fednnnn_plugin.__version__
words, different, common = json.loads(Path("cases.json").read_text())
statuses = []
others = different if mine == "1" else [[]] * len(different)
for words, other in [*((words, other) for other in others), *((words, []) for words in common)]:
    variables = other if isinstance(other, dict) else {}
    os.environ.update(variables)
    fednnnn_plugin.__version__ = variables.get("VERSION", version)
    torch.backends.cpu.get_cpu_capability = lambda: variables.get("INSTRUCTIONS", "AVX2")
    try:
        main([*words, *(other if isinstance(other, list) else [])])
    except SystemExit as ended:
        statuses.append(ended.code)
    for name in [*variables, *filter(sys.modules.__contains__, ["differing"])]:
        os.environ.pop(name, None), sys.modules.pop(name, None)
Path(f"statuses-{mine}.json").write_text(json.dumps(statuses))
"""


def test_ranks_that_differ_are_refused(own_code: Path) -> None:
    """Another option, package, or module on the machine of a rank: in a line that names it."""
    write_modules(own_code)
    words = run_words("none", model="differing:net", dataset="differing:data")
    words.append(f"--set=model_args.note={NOTE}")
    cases = [words, [*DIFFERENT.values()], [*COMMON.values()]]
    (own_code / "cases.json").write_text(json.dumps(cases))
    ended = on_ranks(3, sys.executable, "-c", REFUSED)
    for rank in range(3):
        statuses = json.loads(Path(f"statuses-{rank}.json").read_text())
        assert statuses == [2] * (len(DIFFERENT) + len(COMMON)), ended
    whose, lines = f"rank 1 on {platform.node()}: ", {*ended.stderr.splitlines()}
    for key in DIFFERENT:
        [line] = (line for line in lines if line.startswith(whose + key))
        assert ", rank 0 has " in line
    said = "0.5, rank 0 has 0.05: must be the same on all ranks"
    assert f"{whose}train_args.learning_rate: {said}" in lines
    for said in COMMON:
        [line] = (line for line in ended.stderr.splitlines() if line.startswith(said))
    assert not Path("none").exists()


# Rank 0 is slow to write what a run leaves.
WHOLE = """
import sys, time
import fednnnn_plugin as fp
from fednnnn_plugin.assembly import run_writer
from mpi4py import MPI
from safetensors.torch import load_file

save = run_writer.save_checkpoint
def late(*given):
    time.sleep(0.5)
    save(*given)

run_writer.save_checkpoint = late
recipe, settings = sys.argv[1:]
run = fp.run(recipe, output="whole", overrides=eval(settings))
model = load_file(run.folder / "model.safetensors")
found = float(sum(tensor.sum() for tensor in model.values())), len(fp.read_runs(run))
one, other = MPI.COMM_WORLD.allgather(found)
assert one == other == (one[0], 2), (one, other)
"""


def test_run_returns_with_a_whole_folder_on_each_rank(own_code: Path) -> None:
    ended = on_ranks(2, sys.executable, "-c", WHOLE, FEDNNNN, str(QUICK | {"comm_round": 2}))
    assert ended.status == 0, ended


def test_mistakes_of_one_rank_name_it() -> None:
    """Each line of them, but one that all ranks say."""
    mine = "$((1 - OMPI_COMM_WORLD_RANK))"
    options = f"--set random_seed=-1 --set epochs={mine} --set local_steps={mine}"
    ended = on_ranks(2, "bash", "-c", f"exec {BIN}/fednnnn run {FEDNNNN} {options}")
    assert ended.status == 2, ended
    whose = [line.partition("--set ")[0] for line in ended.stderr.splitlines() if "--set " in line]
    assert sorted(whose) == ["", *[f"rank 1 on {platform.node()}: "] * 2]


def test_mistakes_of_all_ranks_are_counted_once() -> None:
    wrong = [f"--set=train_args.wrong_{number}=1" for number in range(25)]
    ended = on_ranks(2, f"{BIN}/fednnnn", "run", FEDNNNN, *wrong)
    lines = [line for line in ended.stderr.splitlines() if "wrong_" in line or "more" in line]
    assert (ended.status, len(lines), lines[-1]) == (2, 21, "... and 5 more"), ended


# Rank 2 stops itself before it begins, on its way to a barrier, or in it, where rank 0 has heard of
# it already.
STOPPED = """
import logging, os, signal
from mpi4py import MPI
from fednnnn_plugin.processes import job, mpi_ranks

class Stopping(mpi_ranks.MpiRanks):
    def gather(self, part):
        parts = super().gather(part) if later else None
        if self.rank == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().gather(part) if parts is None else parts

logging.basicConfig()
mpi_ranks.SILENT_SECONDS = job._LATE = 0.5
MPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.Get_rank() == 2:
    os.kill(os.getpid(), signal.SIGSTOP)
job.choose_ranks("MPI")
for later in (False, True):
    Stopping(MPI.COMM_WORLD).barrier()
"""


def test_silent_rank_is_named() -> None:
    """The job waits for it, and ends well when it goes on."""
    with started(3, sys.executable, "-c", STOPPED) as process:
        assert process.stderr is not None
        for said in ("each must begin this run", r":[^,]*rank 2\b", r"rank 1\b.*rank 2\b"):
            next(line for line in process.stderr if re.search(said, line))  # others may be slow
            os.kill(rank_process(process.pid, 2), signal.SIGCONT)
        process.communicate(timeout=WATCHDOG)
    assert process.returncode == 0


def rank_process(launcher: int, rank: int) -> int:
    """The process of a launcher's rank."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            variables = (folder / "environ").read_bytes().split(b"\0")
            if parent == launcher and f"OMPI_COMM_WORLD_RANK={rank}".encode() in variables:
                return int(folder.name)
    raise LookupError(rank)


def test_killed_rank_costs_no_bits(own_code: Path, content: Any) -> None:
    """Nor what clients kept, what the server sends beside the model, and the rule's memory.

    Each rank forks its clients: none of them may keep the killed one's place.
    """
    write_modules(own_code)
    own: dict[str, Any] = {"model": "mine:net", "client_method": "scaffold", "checkpoint_every": 2}
    with started(2, BIN / "fednnnn", *run_words("parts", comm_round=1_000, **own)) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if line.startswith("round 3/"))
        os.kill(rank_process(process.pid, 1), signal.SIGKILL)
        process.communicate(timeout=WATCHDOG)
    assert process.returncode != 0
    done = max(int(path.stem.split("-")[1]) for path in Path("parts", "checkpoint").iterdir())
    own["comm_round"] = done + 2
    alone(*run_words("parts", "--resume", **own))
    alone(*run_words("whole", **own))
    assert content(Path("parts")) == content(Path("whole"))
