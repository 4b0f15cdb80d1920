"""``launch/reproduce.sh``: the paper's runs by one command that can be stopped and repeated."""

import gzip
import json
import os
import re
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

import fednnnn_plugin as fp
from fednnnn_plugin.cli import main

from ..support.processes import WATCHDOG
from .conftest import SHORT, Launcher

TWO = ("digits_noniid_b_fedavg", "digits_noniid_b_fednnnn")
# A run that takes no time, and refuses every setting but the number of rounds.
FEDNNNN = """
echo "$@" >>told
while [ $# -gt 0 ]; do
  case $1 in
    --output) folder=$2 ;;
    train_args.comm_round=*) rounds=${1#*=} ;;
    train_args.*) echo "$1 is refused" && exit 2 ;;
  esac
  shift
done
mkdir -p "$folder" && cd "$folder"
echo '{"round": 1}' >metrics.jsonl
printf '{\\n "rounds": %s\\n}\\n' "$rounds" >summary.json
printf 'data_args:\\n  data_cache_dir: /secret\\n  test_served: false\\n' >recipe.yaml
"""


def files(folder: Path) -> dict[str, int]:
    found = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in found}


def test_reproduce_keeps_records_once_and_extends_them(launcher: Launcher, tmp_path: Path) -> None:
    launcher.command("fednnnn", FEDNNNN)
    same = ("--seeds", "0,0", *TWO, "digits_noniid_b_fedav[g]")
    two_rounds = ("reproduce.sh", "--jobs", "2", "--rounds", "2", *same)
    assert launcher.run(*two_rounds, "--precision", "fp32", status=1).count("failed: ") == 2
    assert launcher.run(*two_rounds, "--", "--set", "a=b").count("finished: ") == 2
    kept = files(tmp_path / "results")
    assert kept.keys() == {
        f"{name}-seed0/{file}"
        for name in TWO
        for file in ("metrics.jsonl.gz", "recipe.yaml", "summary.json")
    }
    for recipe in (tmp_path / "results").rglob("recipe.yaml"):  # no path of this machine
        assert recipe.read_text().splitlines()[1] == "  data_cache_dir: ~/fedml_data"

    assert " validation_args.test_served=true " in (tmp_path / "told").read_text()
    (tmp_path / "told").unlink()
    assert launcher.run(*two_rounds).count("there already: ") == 2
    assert files(tmp_path / "results") == kept
    assert not (tmp_path / "told").exists()
    launcher.run("reproduce.sh", "--rounds", "3", TWO[0])
    as_begun = "--resume --set validation_args.test_served=false --set train_args.comm_round=3\n"
    assert (tmp_path / "told").read_text().endswith(as_begun)


@pytest.mark.slow
def test_reproduce_goes_on_with_a_real_run(
    launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command that it gives is run here, where torch is imported already."""
    monkeypatch.chdir(tmp_path)
    launcher.command("fednnnn", 'echo "$@" >asked; until [ -e ended ]; do sleep 0.05; done')
    name, words = f"{TWO[1]}-seed3", ("reproduce.sh", "--seeds", "3", TWO[1], "--rounds", "2")
    folder = tmp_path / "runs" / "reproduce" / name
    begun = {"common_args.random_seed": 3, "train_args.comm_round": 1, "train_args.epochs": 1}
    begun |= {"train_args.checkpoint_every": 999, "device_args.using_gpu": False}
    fp.run(TWO[1], overrides=begun, output=folder)
    done = (folder / "metrics.jsonl").read_text().splitlines()
    process = launcher.start(*words, "--", *SHORT)
    ended = CliRunner().invoke(main, launcher.wait_for("asked", process).split())
    assert ended.exit_code == 0, ended.output
    (tmp_path / "ended").touch()
    assert f"finished: {name}" in process.communicate()[0]
    with gzip.open(tmp_path / "results" / name / "metrics.jsonl.gz", "rt") as file:
        kept = file.read().splitlines()
    assert kept[:-1] == done
    assert json.loads(kept[-1])["round"] == 2
    assert f"there already: {name}" in launcher.run(*words)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGPIPE])
def test_reproduce_ends_its_runs_with_itself(
    launcher: Launcher, tmp_path: Path, number: signal.Signals
) -> None:
    other = "echo $$ >id; exec sleep 600"
    launcher.command("fednnnn", f'case "$2" in *fedavg.yaml) {FEDNNNN};; *) {other}; esac')
    launcher.command("gzip", "echo >keeping; until [ -e go ]; do sleep 0.05; done")
    process = launcher.start("reproduce.sh", "--jobs", "2", "--rounds", "2", *TWO)
    launcher.wait_for("keeping", process)
    run = int(launcher.wait_for("id", process))
    if number == signal.SIGPIPE:
        assert process.stdout
        process.stdout.close()
    else:
        process.send_signal(number)
    (tmp_path / "go").touch()
    status = -number if number == signal.SIGPIPE else 128 + number
    assert process.wait(timeout=WATCHDOG) == status
    with pytest.raises(ProcessLookupError):
        os.kill(run, 0)


def test_reproduce_without_a_recipe_lists_them(launcher: Launcher, tmp_path: Path) -> None:
    """It would take weeks to make all."""
    for words in ((), ("--jobs", "2")):
        said = launcher.run("reproduce.sh", *words, status=2).splitlines()
        assert {"mnist_noniid_b_fednnnn", "cifar10_iid_ub_fedavg"} < {*said}
    assert not (tmp_path / "runs").exists()


def test_reproduce_follows_the_papers_order(launcher: Launcher) -> None:
    launcher.command("fednnnn", "echo the reason; exit 1")
    said = launcher.run("reproduce.sh", "--jobs", "2", "--seeds", "0,1", "--all", status=1)
    made = re.findall("^running: (.*)", said, re.MULTILINE)
    assert len(made) == said.count("failed: ") == said.count("the reason") == 2 * 40
    assert [name.split("_")[3] for name in made[:5]] == [
        *("fedavg-seed0", "fedprox-seed0", "normnorm-seed0", "momentum-seed0", "fednnnn-seed0")
    ]
    assert made[40:] == [name.replace("seed0", "seed1") for name in made[:40]]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        *((words, words) for words in ("--jobs 0", "--seeds 1,a", "--seeds 007", "--sed")),
        *((words, words) for words in ("--jobs", "nothing_like_it")),
        (f"--seeds 0,1 --precision bf16 {TWO[0]}", f"results/{TWO[0]}-seed1"),  # it has fp32
    ],
)
def test_reproduce_names_a_mistake_and_runs_nothing(
    launcher: Launcher, tmp_path: Path, words: str, named: str
) -> None:
    kept = tmp_path / "results" / f"{TWO[0]}-seed1"
    kept.mkdir(parents=True)
    (kept / "recipe.yaml").write_text("train_args:\n  precision: fp32\n")
    assert named in launcher.run("reproduce.sh", *words.split(), status=2)
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_the_papers_table_is_made_part_by_part(launcher: Launcher, tmp_path: Path) -> None:
    """40 conditions with three seeds, and two single clients; CIFAR-10 in another precision."""
    launcher.command("fednnnn", FEDNNNN.replace("train_args.*)", "train_args.b*)"))
    (tmp_path / "told").touch()
    words = ("paper_table.sh", "--rounds", "2", "--precision", "tf32")
    first = launcher.run(*words, "--jobs", "8")
    told = (tmp_path / "told").read_text().splitlines()
    assert len(told) == first.count("finished: ") == 40 * 3 + 2
    in_tf32 = [line for line in told if "train_args.precision=tf32" in line]
    assert len(in_tf32) == 20 * 3 + 1
    assert all("/cifar10_" in line for line in in_tf32)
    assert all("cifar10_noniid_b_" in line for line in told[:5])
