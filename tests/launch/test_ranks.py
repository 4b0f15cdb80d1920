"""One machine, several machines, Slurm: what a user's command starts, and how it ends."""

import re
import signal
import subprocess
import time
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
        ("several_machines.sh", ("nowhere", RECIPE)),
        ("slurm.sbatch", (RECIPE,)),  # outside a job
    ],
)
def test_a_mistake_is_one_line_and_nothing_starts(
    script: Run, command: Command, name: str, words: tuple[str, ...]
) -> None:
    command("mpirun", "exit 1")
    said = script(name, *words, status=2)
    assert said.count("\n") == 1
    assert " ".join(words) in said or words[0] in said


@pytest.mark.parametrize("recipe", [RECIPE, NAME])
def test_one_machine_and_several_start_all_ranks(
    script: Run, command: Command, tmp_path: Path, recipe: str
) -> None:
    command("fednnnn", f'echo "$@" >"{tmp_path}/$OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE"')
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost\nlocalhost\n")  # so Open MPI wants a host that is named twice
    for name, where in (("one_machine.sh", "2"), ("several_machines.sh", str(hosts))):
        script(name, where, recipe, "--output", name)
        for rank in ("0 of 2", "1 of 2"):
            assert (tmp_path / rank).read_text() == f"run {recipe} --output {name}\n"


def test_the_gpu_mapping_fits_the_hosts() -> None:
    lines = (LAUNCH / "hosts.example").read_text().splitlines()
    hosts = dict(re.findall(r"^(\w+) slots=(\d+)$", "\n".join(lines), re.MULTILINE))
    mapping = yaml.safe_load((LAUNCH / "gpu_mapping.yaml").read_text())
    ranks = {host: str(sum(gpus)) for host, gpus in mapping["mapping_two_hosts"].items()}
    assert list(ranks.items()) == list(hosts.items())
    assert sum(mapping["mapping_one_host"]["localhost"]) == 4


@pytest.fixture
def told(tmp_path: Path, command: Command) -> Callable[[], str]:
    """Put commands in the place of Slurm's and MPI's; return what the last one was told."""
    for name in ("scontrol", "mpirun"):
        command(name, f'echo {name} "$@" >"{tmp_path}/told"')
    return (tmp_path / "told").read_text


def test_slurms_directives_are_before_the_first_command() -> None:
    text = (LAUNCH / "slurm.sbatch").read_text()
    head = text[: text.index("\nset -")]
    directives = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", head, re.MULTILINE))
    assert directives.keys() >= {"nodes", "ntasks-per-node", "time", "requeue"}
    assert directives["signal"].startswith("B:USR1@")
    assert text.count("#SBATCH --") == len(directives)


@pytest.mark.parametrize("output", ["--output=other --output mine", "--output=mine"])
def test_slurm_resumes_a_requeued_job(
    script: Run, told: Callable[[], str], tmp_path: Path, output: str
) -> None:
    run = ("slurm.sbatch", RECIPE, "--overwrite", *output.split())
    start = f"mpirun --map-by ppr:2:node --bind-to none fednnnn run {RECIPE} "
    start += f"--output runs/{NAME}-job7"
    again = JOB | {"SLURM_RESTART_COUNT": "1"}
    script(*run, **again)
    assert told() == f"{start} {output}\n"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "recipe.yaml").touch()
    script(*run, **JOB)
    assert told() == f"{start} --overwrite {output}\n"
    script(*run, **again)
    assert told() == f"{start} {output} --resume\n"


def test_slurm_takes_an_allocation_without_tasks_per_node(
    script: Run, told: Callable[[], str]
) -> None:
    """As ``salloc --nodes=2`` makes it; the recipe is one of the package's."""
    script("slurm.sbatch", NAME, SLURM_JOB_ID="7")
    assert told() == f"mpirun --bind-to none fednnnn run {NAME} --output runs/{NAME}-job7\n"


@pytest.mark.parametrize("place", ["here/.venv", "FEDNNNN_VENV", "conda", "none"])
def test_slurm_finds_the_environment(
    script: Run, told: Callable[[], str], command: Command, tmp_path: Path, place: str
) -> None:
    """One that is active, conda's too; else the one that is named, or ``.venv``."""
    command("mpirun", f'echo "$FOUND" >"{tmp_path}/told"')
    job, folder = dict(JOB), tmp_path / place
    if place == "conda":
        command("fednnnn", "")
    else:
        job |= {
            "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin",
            "SLURM_SUBMIT_DIR": str(tmp_path / "here"),
        }
    if place == "FEDNNNN_VENV":
        job["FEDNNNN_VENV"] = str(folder)
    if place not in ("conda", "none"):
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "activate").write_text(f"export FOUND={place}\n")
    said = script("slurm.sbatch", NAME, status=2 if place == "none" else 0, **job)
    if place == "none":
        assert ".venv" in said
    else:
        assert told() == ("\n" if place == "conda" else f"{place}\n")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_one_machine_checkpoints_at_a_signal(
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
def test_slurm_requeues_at_the_time_limit(
    stop: Callable[..., list[str]], command: Command, tmp_path: Path
) -> None:
    command("scontrol", f'echo scontrol "$@" >"{tmp_path}/told"')
    folder = tmp_path / "runs" / f"{NAME}-job7"
    words = ("slurm.sbatch", RECIPE, "--set", "train_args.comm_round=999")
    one_rank = JOB | {"SLURM_NTASKS_PER_NODE": "1"}
    done = stop(signal.SIGUSR1, folder / "metrics.jsonl", *words, status=0, **one_rank)
    assert (tmp_path / "told").read_text() == "scontrol requeue 7\n"
    assert [*(folder / "checkpoint").glob(f"round-{len(done):06}-*")]


@pytest.mark.parametrize("name", ["one_machine.sh", "reproduce.sh"])
def test_second_signal_does_not_wait(
    start: Callable[..., "subprocess.Popen[str]"], command: Command, tmp_path: Path, name: str
) -> None:
    command(
        "fednnnn",
        f'trap "echo >>{tmp_path}/asked" USR1 TERM; touch {tmp_path}/on\n'
        + "while :; do sleep 0.1; done",
    )
    process = start(name, *(["1", NAME] if name == "one_machine.sh" else [NAME]))
    wait_for(tmp_path / "on")
    process.send_signal(signal.SIGTERM)
    wait_for(tmp_path / "asked")
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.05)
