"""One machine, several machines, Slurm: what a user's command starts, and how it ends."""

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from .conftest import Command, Run

LAUNCH = Path(__file__).parents[2] / "launch"
NAME = "digits_noniid_b_fednnnn"
RECIPE = str(LAUNCH.parent / "recipes" / f"{NAME}.yaml")
# What a job has of Slurm, but for its name for the nodes, which Open MPI would look them up by.
JOB = {"SLURM_JOB_ID": "7", "SLURM_NTASKS_PER_NODE": "2"}


@pytest.mark.parametrize(
    "name", ["one_machine.sh", "several_machines.sh", "reproduce.sh", "slurm.sbatch"]
)
def test_help_is_the_scripts_first_comment(script: Run, name: str) -> None:
    assert f"launch/{name}" in script(name, "--help")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *[(name, ()) for name in ("one_machine.sh", "several_machines.sh", "slurm.sbatch")],
        *[("one_machine.sh", (ranks, RECIPE)) for ranks in ("", "0", "two")],
        ("several_machines.sh", ("", RECIPE)),
        ("slurm.sbatch", (NAME,)),
    ],
)
def test_a_mistake_is_one_line_and_nothing_starts(
    script: Run, command: Command, name: str, words: tuple[str, ...]
) -> None:
    for started in ("mpirun", "sbatch"):
        command(started, "exit 1")
    said = script(name, *words, status=2)
    assert said.count("\n") == 1
    assert " ".join(words) in said or "--help" in said


def test_one_machine_and_several_of_which_both_are_this_one(
    script: Run, command: Command, tmp_path: Path
) -> None:
    command("fedml", f'echo "$@" >"{tmp_path}/$OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE"')
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost\nlocalhost\n")  # so Open MPI wants a host that is named twice
    for name, where in (("one_machine.sh", "2"), ("several_machines.sh", str(hosts))):
        script(name, where, RECIPE, "--output", name)
        for rank in ("0 of 2", "1 of 2"):
            assert (tmp_path / rank).read_text() == f"run {RECIPE} --output {name}\n"
    assert "nowhere" in script("several_machines.sh", "nowhere", RECIPE, status=2)


def test_the_gpu_mapping_fits_the_hosts() -> None:
    lines = (LAUNCH / "hosts.example").read_text().splitlines()
    hosts = dict(re.findall(r"^(\w+) slots=(\d+)$", "\n".join(lines), re.MULTILINE))
    mapping = yaml.safe_load((LAUNCH / "gpu_mapping.yaml").read_text())
    ranks = {host: str(sum(gpus)) for host, gpus in mapping["mapping_two_hosts"].items()}
    assert list(ranks.items()) == list(hosts.items())
    assert sum(mapping["mapping_one_host"]["localhost"]) == 4


@pytest.fixture
def slurm(tmp_path: Path, environment: dict[str, str], command: Command) -> Callable[[], str]:
    """Stand in for Slurm's commands; return what the last one was told."""
    for name in ("sbatch", "scontrol"):
        command(name, f'echo {name} "$@" >"{tmp_path}/told"')
    activate = tmp_path / ".venv" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    activate.write_text("# the environment of the tests serves\n")
    environment["SLURM_SUBMIT_DIR"] = str(tmp_path)
    return (tmp_path / "told").read_text


def test_slurms_directives_are_before_the_first_command() -> None:
    text = (LAUNCH / "slurm.sbatch").read_text()
    head = text[: text.index("\nset -")]
    directives = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", head, re.MULTILINE))
    assert directives.keys() >= {"nodes", "ntasks-per-node", "time", "requeue"}
    assert directives["signal"].startswith("B:USR1@")
    assert text.count("#SBATCH --") == len(directives)


@pytest.mark.parametrize(
    ("more", "options", "gpus"),
    [
        ("", "--time=1:00:00", 2),
        ("", "--ntasks-per-node=4 --ntasks-per-node 8 --nodes=1", 8),
        ("--set device_args.using_gpu=false", "", 0),
        ("--set using_gpu=False --set=device_args.using_gpu=YES", "", 2),
        ("--set=using_gpu=off", "", 0),
        ("--set device_type=cpu", "", 0),
        ("--set using_gpu=false --set=device_args.device_type=gpu", "", 2),
        ("--set using_gpu=false --set device_type=null", "", 0),
    ],
)
def test_slurm_gives_gpus_where_the_run_wants_them(
    script: Run, slurm: Callable[[], str], more: str, options: str, gpus: int
) -> None:
    script("slurm.sbatch", RECIPE, *more.split(), SBATCH_OPTIONS=options)
    asked = [f"--gpus-per-node={gpus}"] if gpus else []
    words = ["sbatch", *asked, *options.split(), str(LAUNCH / "slurm.sbatch"), RECIPE]
    assert slurm().split() == [*words, *more.split()]


@pytest.mark.parametrize("text", ['{"device_args": {"using_gpu": true}}', "device_type: gpu # cpu"])
def test_slurm_reads_a_recipe_however_it_is_written(
    script: Run, slurm: Callable[[], str], tmp_path: Path, text: str
) -> None:
    (tmp_path / "mine.yaml").write_text(f"# using_gpu: false\n{text}\n")
    script("slurm.sbatch", "mine.yaml")
    assert slurm().split()[1] == "--gpus-per-node=2"


@pytest.mark.parametrize("output", ["--output=other --output mine", "--output=mine"])
def test_slurm_resumes_what_a_job_that_is_queued_again_has_begun(
    script: Run, slurm: Callable[[], str], command: Command, tmp_path: Path, output: str
) -> None:
    command("mpirun", f'echo "$@" >"{tmp_path}/told"')
    run = ("slurm.sbatch", RECIPE, "--overwrite", *output.split())
    fedml = f"--map-by ppr:2:node --bind-to none fedml run {RECIPE} --output runs/{NAME}-job7"
    again = JOB | {"SLURM_RESTART_COUNT": "1"}
    script(*run, **again)
    assert slurm() == f"{fedml} {output}\n"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "recipe.yaml").touch()
    script(*run, **JOB)
    assert slurm() == f"{fedml} --overwrite {output}\n"
    script(*run, **again)
    assert slurm() == f"{fedml} {output} --resume\n"


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_one_machine_leaves_a_checkpoint_of_the_last_round(
    stop: Callable[..., list[str]], tmp_path: Path, number: int, status: int
) -> None:
    words = (
        "one_machine.sh",
        "2",
        RECIPE,
        "--output",
        "mine",
        "--set",
        "train_args.comm_round=999",
    )
    done = stop(number, tmp_path / "mine" / "metrics.jsonl", *words, status=status)
    assert [*(tmp_path / "mine" / "checkpoint").glob(f"round-{len(done):06}-*")]


@pytest.mark.slow
def test_slurms_time_limit_leaves_a_checkpoint_and_queues_the_job_again(
    stop: Callable[..., list[str]], slurm: Callable[[], str], tmp_path: Path
) -> None:
    folder = tmp_path / "runs" / f"{NAME}-job7"
    words = ("slurm.sbatch", RECIPE, "--set", "train_args.comm_round=999")
    one_rank = JOB | {"SLURM_NTASKS_PER_NODE": "1"}
    done = stop(signal.SIGUSR1, folder / "metrics.jsonl", *words, status=0, **one_rank)
    assert slurm() == "scontrol requeue 7\n"
    assert [*(folder / "checkpoint").glob(f"round-{len(done):06}-*")]
