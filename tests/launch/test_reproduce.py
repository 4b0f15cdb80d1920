"""``launch/reproduce.sh``: the paper's runs by one command that can be stopped and repeated."""

import gzip
import json
import os
import re
import shlex
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from fednnnn_plugin.cli import main

from ..support.processes import WATCHDOG
from .conftest import SHORT, Launcher

ORDER = ("fedavg", "fedprox", "normnorm", "momentum", "fednnnn")  # the paper's
ONE = "mnist_iid_b_fedavg"
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
cat >metrics.jsonl <<'METRICS'
{"round": 1, "by_client": [{"client": 0, "outcome": "accepted"}], "clients": 1}
{"by_client": [{"client": 0, "outcome": "accepted"}, {"client": 1, "outcome": "rejected"}], "a": 1}
METRICS
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
    said = launcher.run(*two_rounds, "--precision", "fp32", status=1)
    assert said.count("failed: ") == said.count("precision=fp32 is refused") == 2
    assert launcher.run(*two_rounds, "--", "--set", "a=b").count("finished: ") == 2
    kept = files(tmp_path / "results")
    assert kept.keys() == {
        f"{name}-seed0/{file}"
        for name in TWO
        for file in ("metrics.jsonl.gz", "recipe.yaml", "summary.json")
    }
    for recipe in (tmp_path / "results").rglob("recipe.yaml"):  # no path of this machine
        assert recipe.read_text().splitlines()[1] == "  data_cache_dir: ~/fedml_data"
    for record in (tmp_path / "results").rglob("metrics.jsonl.gz"):
        accepted, rejected = map(json.loads, gzip.decompress(record.read_bytes()).splitlines())
        assert accepted == {"round": 1, "clients": 1}
        assert [each["client"] for each in rejected["by_client"]] == [0, 1]

    assert " validation_args.test_served=true " in (tmp_path / "told").read_text()
    (tmp_path / "told").unlink()
    assert launcher.run(*two_rounds).count("there already: ") == 2
    assert files(tmp_path / "results") == kept
    assert not (tmp_path / "told").exists()
    launcher.run("reproduce.sh", "--rounds", "3", TWO[0])
    as_begun = "--resume --set validation_args.test_served=false --set train_args.comm_round=3\n"
    assert (tmp_path / "told").read_text().endswith(as_begun)
    same_settings = ("--device=cpu", "--set", "data_args.partition_alpha=5e-1", "--set=metrics=[a]")
    recorded = tmp_path / "results" / f"{TWO[0]}-seed0" / "recipe.yaml"
    recorded.write_text("  partition_alpha: 0.5\n  metrics:\n  - a\n  using_gpu: true\n")
    said = launcher.run("reproduce.sh", "--rounds", "3", TWO[0], "--", *same_settings)
    assert said.count("there already: ") == 1
    kept = files(tmp_path / "results")
    launcher.command("fednnnn", f'set -- "$@" train_args.comm_round=1\n{FEDNNNN}')  # it stops early
    said = launcher.run("reproduce.sh", "--rounds", "4", TWO[0])
    assert f"results/{TWO[0]}-seed0 stays, of 3 rounds: the run has 1" in said
    assert files(tmp_path / "results") == kept


@pytest.mark.slow
def test_reproduce_goes_on_with_a_real_run(
    launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command that it gives is run here, where torch is imported once."""
    monkeypatch.chdir(tmp_path)
    waits = "until rm ended 2>/dev/null; do sleep 0.05; done"
    launcher.command("fednnnn", f'echo "$@" >asked; {waits}')
    name = f"{TWO[1]}-seed3"
    for rounds in ("1", "2"):
        words = ("reproduce.sh", "--seeds", "3", TWO[1], "--rounds", rounds)
        process = launcher.start(*words, "--", *SHORT)
        result = CliRunner().invoke(main, launcher.wait_for("asked", process).split())
        assert result.exit_code == 0, result.output
        (tmp_path / "asked").unlink()
        (tmp_path / "ended").touch()
        assert f"finished: {name}" in process.communicate()[0]
    with gzip.open(tmp_path / "results" / name / "metrics.jsonl.gz", "rt") as file:
        assert [json.loads(line)["round"] for line in file] == [1, 2]
    assert f"there already: {name}" in launcher.run(*words)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGPIPE])
def test_reproduce_ends_its_runs_with_itself(
    launcher: Launcher, tmp_path: Path, number: signal.Signals
) -> None:
    """The records of a run that is stopped stay, but do not replace those of more rounds."""
    other = f"""({FEDNNNN.replace('"$rounds"', "1")}); echo $$ >id; exec sleep 600"""
    launcher.command("fednnnn", f'case "$2" in *fedavg.yaml) {FEDNNNN};; *) {other}; esac')
    launcher.command("gzip", "echo >keeping; until [ -e go ]; do sleep 0.05; done; cat")
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
    kept = tmp_path / "results" / f"{TWO[1]}-seed0" / "summary.json"
    assert json.loads(kept.read_text())["rounds"] == 1
    launcher.command("fednnnn", f"""{FEDNNNN.replace('"$rounds"', "${rounds%?}")}; exit 143""")
    for rounds in ("35", "29"):  # of which 3 and 2 are done
        launcher.run("reproduce.sh", "--rounds", rounds, TWO[1], status=1)
        assert json.loads(kept.read_text())["rounds"] == 3


@pytest.mark.parametrize(
    ("words", "named"),
    [
        *((words, words) for words in ("--jobs 0", "--seeds 007", "--sed", "--jobs", "none_such")),
        ("--jobs 2", "\n".join(f"mnist_noniid_b_{method}" for method in ORDER)),
        ("--seeds 0,1 --precision bf16 --all", "results/mnist_iid_b_fedavg-seed1"),  # it has fp32
        (
            f"--seeds 1 {ONE} -- --set=train_args.beta=1.2",
            "beta=1.2: results/mnist_iid_b_fedavg-seed1 has",
        ),
        (f"--seeds none {TWO[0]}", "--seeds none: must be whole numbers"),
        (f"--seeds '' {TWO[0]}", "--seeds : must be whole numbers"),
        ("--table --seeds 1", "the table has its own seeds"),
        ("--table mnist_iid_b_fedavg", "the table has its own seeds"),
    ],
)
def test_reproduce_names_a_mistake_and_runs_nothing(
    launcher: Launcher, tmp_path: Path, words: str, named: str
) -> None:
    kept = tmp_path / "results" / "mnist_iid_b_fedavg-seed1"
    kept.mkdir(parents=True)
    (kept / "recipe.yaml").write_text("train_args:\n  precision: fp32\n  beta: 0.7\n")
    assert named in launcher.run("reproduce.sh", *shlex.split(words), status=2)
    assert "launch/reproduce.sh" in launcher.run("reproduce.sh", "--help")
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_the_papers_table_is_made_in_its_order(launcher: Launcher, tmp_path: Path) -> None:
    """40 conditions with three seeds, and two single clients; CIFAR-10 in another precision."""
    fails = "case $2 in *mnist_single_client.yaml) exit 3 ;; esac\n"  # which costs no other run
    launcher.command("fednnnn", fails + FEDNNNN.replace("train_args.*)", "train_args.b*)"))
    (tmp_path / "told").touch()
    words = ("reproduce.sh", "--table", "--rounds", "2", "--precision", "tf32")
    first = launcher.run(*words, "--jobs", "8", status=1)
    told = (tmp_path / "told").read_text().splitlines()
    assert len(told) == first.count("finished: ") == 40 * 3 + 1
    in_tf32 = [line for line in told if "train_args.precision=tf32" in line]
    assert len(in_tf32) == 20 * 3 + 1
    assert all("/cifar10_" in line for line in in_tf32)
    begun = re.findall("^running: (.*)$", first, re.MULTILINE)
    assert all(name.startswith("cifar10_noniid_b_") for name in begun[:5])
    assert {name[-1] for name in begun[:42]} == {"0"}
