"""One machine, several machines, Slurm: what a user's command starts, and how it ends."""

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from ..support.processes import WATCHDOG
from .conftest import SHORT, Launcher

LAUNCH = Path(__file__).parents[2] / "launch"
NAME = "digits_noniid_b_fednnnn"
RECIPE = str(LAUNCH.parent / "recipes" / f"{NAME}.yaml")
# What a job has of Slurm, but for its name for the nodes, which Open MPI would look them up by.
JOB = {"SLURM_JOB_ID": "7", "SLURM_NTASKS_PER_NODE": "2"}
WAIT = "while :; do sleep 0.05; done"  # so that the shell sees a signal soon


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *[(name, ()) for name in ("one_machine.sh", "several_machines.sh", "slurm.sbatch")],
        ("one_machine.sh", ("0", RECIPE)),
        ("several_machines.sh", ("nowhere", RECIPE)),
        ("slurm.sbatch", (RECIPE,)),  # outside a job
        ("slurm.sbatch", ("--time=1:00", RECIPE)),
        ("slurm.sbatch", (RECIPE, "other")),
    ],
)
def test_launchers_refuse_mistakes_before_the_start(
    launcher: Launcher, name: str, words: tuple[str, ...]
) -> None:
    """Each in a line, and ``--help`` is the script's first comment."""
    launcher.command("mpirun", "exit 1")
    said = launcher.run(name, *words, status=2)
    assert said.count("\n") == 1
    wanted = {" ".join(words), words[0], words[-1]} if words else {"--help says more"}
    assert any(text in said for text in wanted)
    assert f"launch/{name}" in launcher.run(name, "--help")


def test_launchers_start_all_ranks(launcher: Launcher, tmp_path: Path) -> None:
    launcher.command("fednnnn", 'echo "$OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE: $*"')
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost\nlocalhost\n")  # so Open MPI wants a host that is named twice
    for name, where in (("one_machine.sh", "2"), ("several_machines.sh", str(hosts))):
        said = launcher.run(name, where, NAME, "--output", name).splitlines()
        assert {f"{rank} of 2: run {NAME} --output {name}" for rank in (0, 1)} <= {*said}


def test_gpu_mapping_fits_the_hosts() -> None:
    hosts = re.findall(r"^(\w+) slots=(\d+)$", (LAUNCH / "hosts.example").read_text(), re.M)
    mapping = yaml.safe_load((LAUNCH / "gpu_mapping.yaml").read_text())
    ranks = {host: str(sum(gpus)) for host, gpus in mapping["mapping_two_hosts"].items()}
    assert list(ranks.items()) == hosts
    assert sum(mapping["mapping_one_host"]["localhost"]) == 4


def test_slurms_directives_are_before_the_first_command() -> None:
    text = (LAUNCH / "slurm.sbatch").read_text()
    head = text[: text.index("\nset -")]
    directives = re.findall(r"^#SBATCH --([\w-]+=B:USR1@|[\w-]+)", head, re.MULTILINE)
    assert {*directives} >= {"nodes", "ntasks-per-node", "time", "requeue", "signal=B:USR1@"}
    assert text.count("#SBATCH --") == len(directives)


def test_slurm_resumes_a_requeued_job(launcher: Launcher, tmp_path: Path) -> None:
    launcher.command("mpirun", 'echo "$@"')
    output = "--output=other --output mine"
    run = ("slurm.sbatch", RECIPE, "--overwrite", *output.split())
    start = f"--map-by ppr:2:node --bind-to none fednnnn run {RECIPE} --output runs/{NAME}-job7"
    again = JOB | {"SLURM_RESTART_COUNT": "1"}
    assert launcher.run(*run, **again) == f"{start} {output}\n"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "recipe.yaml").touch()
    assert launcher.run(*run, **JOB) == f"{start} --overwrite {output}\n"
    assert launcher.run(*run, **again) == f"{start} {output} --resume\n"
    # An allocation without tasks per node, as ``salloc --nodes=2`` makes it.
    said = launcher.run("slurm.sbatch", NAME, SLURM_JOB_ID="7")
    assert said == f"--bind-to none fednnnn run {NAME} --output runs/{NAME}-job7\n"


def test_slurm_finds_the_environment(launcher: Launcher, tmp_path: Path) -> None:
    """One that is named or ``.venv``, but one that is active before that."""
    launcher.command("mpirun", 'echo "$FOUND"')
    job = JOB | {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}
    job["SLURM_SUBMIT_DIR"] = str(tmp_path / "here")
    assert ".venv" in launcher.run("slurm.sbatch", NAME, status=2, **job)
    named = {"FEDNNNN_VENV": str(tmp_path / "named")}
    for place, more in (("here/.venv", {}), ("named", named)):
        (tmp_path / place / "bin").mkdir(parents=True)
        (tmp_path / place / "bin" / "activate").write_text(f"export FOUND={place}\n")
        assert launcher.run("slurm.sbatch", NAME, **job | more) == f"{place}\n"
    launcher.command("fednnnn", "")  # as of conda, which has no bin/activate
    assert launcher.run("slurm.sbatch", NAME, **job) == "\n"


@pytest.mark.slow
def test_one_machine_checkpoints_at_a_signal(launcher: Launcher, tmp_path: Path) -> None:
    rounds = ("--set=train_args.comm_round=999", "--set=train_args.client_num_per_round=3")
    options = ("--output", "mine", *rounds, *SHORT)
    process = launcher.start("one_machine.sh", "2", RECIPE, *options)
    launcher.wait_for("mine/metrics.jsonl", process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=WATCHDOG)
    assert process.returncode == 130, errors
    done = (tmp_path / "mine" / "metrics.jsonl").read_text().count("\n")
    assert [*(tmp_path / "mine" / "checkpoint").glob(f"round-{done:06}.*")]


@pytest.mark.parametrize(
    ("words", "number", "passed_on"),
    [
        (("one_machine.sh", "1", NAME), signal.SIGTERM, "USR1"),
        (("one_machine.sh", "1", NAME), signal.SIGUSR1, "USR1"),  # a batch system's
        (("reproduce.sh", NAME), signal.SIGTERM, "TERM"),
        (("reproduce.sh", "--table"), signal.SIGTERM, "TERM"),
    ],
)
def test_signal_is_passed_on_and_a_second_ends(
    launcher: Launcher, words: Any, number: int, passed_on: str
) -> None:
    traps = "\n".join(f"trap 'echo {name} >>asked' {name}" for name in ("USR1", "TERM"))
    launcher.command("fednnnn", f"{traps}\necho >on\n{WAIT}")
    process = launcher.start(*words)
    launcher.wait_for("on", process)
    process.send_signal(number)
    assert launcher.wait_for("asked", process) == f"{passed_on}\n"
    assert process.poll() is None
    process.send_signal(number)
    process.communicate(timeout=WATCHDOG)
    assert process.returncode == 143


@pytest.mark.parametrize("words", [(), ("--overwrite",)])
@pytest.mark.parametrize("finished", [True, False])
def test_slurm_requeues_a_run_that_finished_a_round(
    launcher: Launcher, tmp_path: Path, words: tuple[str, ...], finished: bool
) -> None:
    """When it has ended: it has a checkpoint that was not there when the job began.

    A run that is replaced may have had one of the same round.
    """
    folder = tmp_path / f"runs/{NAME}-job7/checkpoint"
    folder.mkdir(parents=True)
    old = folder / f"round-0000{'10' if words else '09'}"
    old.touch()
    os.utime(old, (0, 0))
    save = f"sleep 0.3; {f'touch {folder}/round-000010' if finished else ':'}"
    launcher.command("mpirun", f"trap '{save}; exit 1' USR1\necho >on\n{WAIT}")
    launcher.command("scontrol", 'echo "$@"')
    process = launcher.start("slurm.sbatch", RECIPE, *words, **JOB)
    launcher.wait_for("on", process)
    process.send_signal(signal.SIGUSR1)
    output, errors = process.communicate(timeout=WATCHDOG)
    assert (process.returncode, output) == ((0, "requeue 7\n") if finished else (1, ""))
    assert ("no round" in errors) != finished
