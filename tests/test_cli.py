"""``fednnnn``: what a person sees, the exit status; from Python too, mistakes write nothing.

What ``fp.report`` and ``fp.tune`` do: ``test_own_rule.py``.
"""

import errno
import inspect
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner, Result

import fednnnn_plugin as fp
from fednnnn_plugin.cli import main
from fednnnn_plugin.cli.short_options import short_overrides
from fednnnn_plugin.processes.devices import usable_cores
from fednnnn_plugin.recipe import list_recipes
from fednnnn_plugin.reporting.arguments import run_paths
from fednnnn_plugin.reporting.build import report
from fednnnn_plugin.tuning.tuning import tune

from .support.commands import RECIPE, quick

NO_DATA = ["--set=data_cache_dir=none", "--set=download=false"]
pytestmark = pytest.mark.usefixtures("own_code")  # an empty folder
RESULTS = Path(__file__).parents[1] / "results"
PROGRAM = Path(sys.executable).with_name("fednnnn")


def fednnnn(*words: str) -> Result:
    return CliRunner().invoke(main, list(words), catch_exceptions=False)


def run(*words: str, **settings: Any) -> Result:
    return fednnnn("run", RECIPE, *words, *quick(**settings))


def refused(result: Result) -> str:
    """Return the one line of the error."""
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    return result.stderr[:-1]


def test_run_shows_a_line_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing GPUs are said once, and stand in the log."""
    monkeypatch.setattr("fednnnn_plugin.processes.devices.visible_gpus", lambda: 0)
    result = run("--tensorboard", using_gpu=True, comm_round=2)
    assert result.exit_code == 0
    folder = Path("runs", f"{RECIPE}-seed0")
    *rounds, closing = re.sub(r"[01]\.\d+", "x", result.stdout).splitlines()
    for number, line in zip((1, 2), rounds, strict=True):
        assert line.startswith(f"round {number}/2  accuracy x  N/E x  ")
    assert closing.startswith(f"runs/{folder.name}: accuracy x ")
    assert result.stderr.startswith("warning: device_args.using_gpu: ")
    warning = result.stderr.removeprefix("warning: ")
    assert list((folder / "tensorboard").glob("events.*"))
    log = (folder / "fedml.log").read_text()
    assert log.count(warning) == 1
    for said in (f"fednnnn-plugin {fp.__version__}", "device: cpu", "digits", "20 clients"):
        assert said in log
    assert fp.__version__ in fednnnn("--version").output


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([RECIPE, "--set=beta=big"], "--set train_args.beta: 'big': "),
        ([RECIPE, "--set=client_num_in_total=2000"], "train_args.client_num_in_total: 2000: "),
        ([RECIPE, "--set=model=nnnn_mnist"], "model_args.model: nnnn_mnist: "),
        (["nowhere/x.yaml"], "nowhere/x.yaml: no such file"),
        (["mnist_noniid_b_fednnnn", *NO_DATA], "/none: no MNIST here: "),
        ([RECIPE, "--output=.", *quick()], "--output: "),
        ([RECIPE, "--output=a\x1b[2Jb", "--resume"], r"/a\x1b[2Jb: "),
        ([RECIPE, "--resume", "--overwrite"], "--resume, --overwrite"),
    ],
)
def test_mistake_in_run_and_check_writes_nothing(words: list[str], named: str) -> None:
    for command in ("run", "check"):
        line = refused(fednnnn(command, *words, "--set=using_gpu=false"))
        assert named in line
        assert line.isprintable()
        assert not any(Path().iterdir())


@pytest.mark.slow
def test_run_and_check_of_a_held_folder() -> None:
    run("--output=held")
    before = {path: path.read_bytes() for path in Path().rglob("*.*")}
    resume = ["--output=held", "--resume"]
    for named, words in {
        "--overwrite": ["--output=held"],
        "/held has true": [*resume, "--set=download=false"],
        "train_args.beta": [*resume, "--set=beta=0.9"],
    }.items():
        for command in ("run", "check"):
            assert named in refused(fednnnn(command, RECIPE, *quick(), *words))
    for rounds, folder in ((3, "held"), (1, "held, finished already")):
        checked = fednnnn("check", RECIPE, *resume, *quick(comm_round=rounds))
        assert f"FedNNNN (beta 0.7, gamma 0.8), {rounds} rounds, 3 of 20 clients" in checked.stdout
        assert checked.stdout.endswith(f"\nrun folder: {folder}\n")
    assert run(*resume).stdout.startswith("held: ")
    assert {path: path.read_bytes() for path in Path().rglob("*.*")} == before
    assert run(*resume, comm_round=2).stdout.startswith("round 2/2")
    assert run("--output=held", "--overwrite").exit_code == 0


def test_mpi_needs_mpi4py(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under ``mpirun``, two processes that each ran alone would write into one folder."""
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    assert "--backend MPI: mpi4py does not import" in refused(run())
    assert "--backend sp: 2 processes" in refused(run("--backend=sp"))
    assert not any(Path().iterdir())


@pytest.mark.slow
def test_launcher_unknown_to_mpi_is_refused() -> None:
    """As of ``srun`` without PMI."""
    environment = os.environ | {"SLURM_STEP_NUM_TASKS": "3", "SLURM_PROCID": "1"}
    command = [PROGRAM, "run", RECIPE]
    ended = subprocess.run(command, env=environment, check=False, stderr=subprocess.PIPE)
    assert ended.returncode == 2, ended
    assert b"3 processes were launched, but MPI sees 1: " in ended.stderr
    assert not any(Path().iterdir())


def test_recipes_are_listed_and_copied_once() -> None:
    listed = fednnnn("recipes").output
    number = len(list_recipes())
    assert listed.count("present") + listed.count("missing") == number
    assert re.search(r"digits .* FedNNNN +20 +30 +present +digits_noniid_ub_fednnnn\n", listed)
    assert fednnnn("recipes", "copy", "mine").output.startswith(f"{number} recipes ")
    changed = Path("mine", "digits_noniid_b_fedavg.yaml")
    changed.write_text("mine")
    refused(fednnnn("recipes", "copy", "mine"))
    assert changed.read_text() == "mine"


def test_recipes_are_copied_all_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    write, full = Path.write_bytes, OSError(errno.ENOSPC, "No space left on device")

    def fill(path: Path, content: bytes) -> int:
        write(path, content[:10])
        if len([*path.parent.iterdir()]) == 3:
            raise full
        return len(content)

    with monkeypatch.context() as disk:
        disk.setattr(Path, "write_bytes", fill)
        refused(fednnnn("recipes", "copy", "mine"))
    assert not any(Path("mine").iterdir())
    assert fednnnn("recipes", "copy", "mine").exit_code == 0


def test_partition_shows_a_recipes_clients() -> None:
    words = ("partition", "digits_noniid_ub_fednnnn", "--set", "classes_per_client=3")
    Path("mine.csv").write_text("mine")
    Path("folder.svg").mkdir()
    for option, named in {
        "--csv=mine.csv": "--csv: mine.csv: ",
        "--plot=folder.svg": "--plot: folder.svg: is a folder",
        "--set=power_law_exponent=3": "data_args.power_law_exponent: 3: ",
    }.items():
        assert named in refused(fednnnn(*words, option))
    assert Path("mine.csv").read_text() == "mine"
    result = fednnnn(*words, "--csv", "mine.csv", "--overwrite")
    assert result.exit_code == 0
    counts = pd.read_csv("mine.csv", index_col="client")
    assert (counts.shape, counts.to_numpy().sum()) == ((20, 10), 1437)
    assert "classes a client: 3 to 3" in result.stdout
    assert "20 clients, 1437 samples\n" in result.stdout


@pytest.mark.parametrize("option", ["--csv=mine.csv", "--plot=mine.svg"])
def test_partition_on_a_full_disk_keeps_the_old_file(option: str) -> None:
    name = option.partition("=")[2]
    Path(name).write_text("mine")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        result = fednnnn("partition", RECIPE, option, "--overwrite")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (result.exit_code, result.stderr) == (1, f"{Path(name).resolve()}: File too large\n")
    assert (Path(name).read_text(), list(Path().iterdir())) == ("mine", [Path(name)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "streams", "made"),
    [
        (["run", RECIPE, *quick()], "> >(exit) 2>/dev/full", f"runs/{RECIPE}-seed0/summary.json"),
        (["recipes", "copy", "mine"], ">/dev/full", "mine"),
    ],
)
def test_command_outlasts_closed_streams(words: list[str], streams: str, made: str) -> None:
    command = ["bash", "-c", f'exec "$0" "$@" {streams}', PROGRAM, *words]
    assert subprocess.run(command, check=True, stderr=subprocess.PIPE).stderr == b""
    assert Path(made).exists()


def test_run_with_mlops_becomes_fedml_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same arguments and in the same process, as launchers count on."""
    words = ["run", RECIPE, "--set=using_mlops=true"]
    monkeypatch.setattr(sys, "argv", ["fednnnn", *words])
    monkeypatch.setattr("fednnnn_plugin.cli.run.find_spec", lambda name: name)
    monkeypatch.setattr(os, "execv", lambda path, command: sys.exit(" ".join([path, *command])))
    started = fednnnn(*words).stdout
    assert started.startswith(f"{sys.executable} {sys.executable} -c import sys; ")
    assert started.endswith(f" from fedml.cli.cli import cli; cli() {' '.join(words)}\n")


@pytest.mark.parametrize(("package", "function"), [(fp.report, report), (fp.tune, tune)])
def test_help_is_of_the_function(package: Any, function: Any) -> None:
    assert inspect.signature(package) == inspect.signature(function)
    assert inspect.getdoc(function) in str(inspect.getdoc(package))


@pytest.mark.parametrize(
    ("call", "argument", "given", "named"),
    [
        (fp.report, RECIPE, {"formats": ["gif"]}, "formats: 'gif'"),
        (fp.report, RECIPE, {"target": float("nan")}, "target: nan"),
        (fp.report, RECIPE, {"out": 3}, "out: 3"),
        (fp.report, RECIPE, {}, f"{RECIPE}: no run"),
        (fp.read_runs, pd.DataFrame({"run": [1]}), {}, "runs: a DataFrame: "),
    ],
)
def test_report_names_a_wrong_argument(
    call: Callable[..., object], argument: Any, given: dict[str, Any], named: str
) -> None:
    with pytest.raises(fp.UserError, match=f"^{named}"):
        call(argument, **given)
    assert not any(Path().iterdir())


def test_runs_are_paths_patterns_and_lists_of_them() -> None:
    runs = [RESULTS / f"digits_noniid_b_fednnnn-seed{seed}" for seed in (0, 1, 2)]
    given = (str(RESULTS / "digits_noniid_b_fednnnn-*"), [runs[0], Path("nowhere")])
    assert run_paths(given) == [*runs, runs[0], Path("nowhere")]


def test_short_options_are_for_what_people_change_most() -> None:
    """A rule takes the place of another, with what belongs to the other alone."""
    from fednnnn_plugin.recipe import find_recipe, load_recipe

    words = ("--method=fedavg", "--rounds=1", "--seed=3", "--device=cpu", "--clients=3/10")
    result = fednnnn("run", "digits_noniid_b_fedprox", *words, "--output=run")
    assert result.exit_code == 0, result.output
    recipe = load_recipe(Path("run/recipe.yaml"))
    train = recipe.train_args
    assert (train.federated_optimizer, recipe.rule_settings) == ("PaperFedAvg", {})
    assert (train.comm_round, recipe.common_args.random_seed) == (1, 3)
    assert (train.client_num_per_round, train.client_num_in_total) == (3, 10)
    assert not recipe.device_args.using_gpu
    for name in ("Momentum", "digits_noniid_b_scaffold"):  # what the new rule has too, stays
        base = "digits_noniid_b_fednnnn" if name == "Momentum" else name
        overrides = short_overrides({"method": "momentum", "device": "gpu:1"})
        gamma = [] if name == "Momentum" else ["train_args.gamma=0.5"]
        loaded = load_recipe(find_recipe(base), [*overrides, *gamma])
        assert (loaded.train_args.federated_optimizer, [*loaded.rule_settings]) == (
            "Momentum",
            ["gamma"],
        )
        assert (loaded.device_args.gpu_id, loaded.device_args.using_gpu) == (1, True)
    fedprox = find_recipe("digits_noniid_b_fedprox")
    overrides = short_overrides({"method": "fedprox"})
    assert load_recipe(fedprox, overrides) == load_recipe(fedprox)
    text = find_recipe("digits_noniid_b_fednnnn").read_text()
    Path("gpu.yaml").write_text(text.replace("using_gpu: true", "device_type: gpu"))
    loaded = load_recipe(Path("gpu.yaml"), short_overrides({"device": "cpu"}))
    assert not loaded.device_args.wants_gpu
    Path("mine.yaml").write_text(text.replace("FedNNNN", "mine:A"))
    overrides = short_overrides({"method": "FedAvg"})
    assert load_recipe(Path("mine.yaml"), overrides).rule_settings == {}


@pytest.mark.parametrize(
    ("option", "start"),
    [
        ("--method=FedNNN", "--method: FedNNN: "),
        ("--device=tpu", "--device: tpu: "),
        ("--clients=5of9", "--clients: 5of9: "),
        ("--rounds=0", "--set train_args.comm_round: 0: "),
    ],
)
def test_wrong_short_option_is_one_line(option: str, start: str) -> None:
    assert refused(fednnnn("check", RECIPE, option)).startswith(start)


@pytest.mark.slow
def test_run_imports_nothing_that_takes_seconds() -> None:
    """Of what it does not use: another second at the start of each run and rank."""
    words = ["run", RECIPE, *quick()]
    unused = {"torch._dynamo", "torchvision", "pandas", "sklearn", "scipy", "matplotlib", "fedml"}
    script = (
        "import sys; from fednnnn_plugin.cli import main\n"
        f"main({words}, standalone_mode=False)\n"
        f"assert not {unused} & {{*sys.modules}}"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.slow
@pytest.mark.skipif(
    usable_cores() < 2 or not hasattr(os, "sched_getaffinity"), reason="of two cores, on Linux"
)
@pytest.mark.parametrize("binding", ["OMP_PROC_BIND=spread", "OMP_PLACES=cores"])
def test_openmps_binding_leaves_all_cores(binding: str) -> None:
    script = (
        "import os; from fednnnn_plugin.cli import main\n"
        "cores = os.sched_getaffinity(0)\n"
        "main(['recipes'], standalone_mode=False)\n"
        "import torch\n"
        "assert os.sched_getaffinity(0) == cores"
    )
    subprocess.run(["env", binding, sys.executable, "-c", script], check=True)


@pytest.mark.slow
@pytest.mark.skipif(
    usable_cores() < 2 or not hasattr(os, "sched_getaffinity"), reason="of two cores, on Linux"
)
@pytest.mark.parametrize("cores", [1, 2])
def test_script_that_openmp_binds_to_one_core_is_told(cores: int, tmp_path: Path) -> None:
    """Not one that has no other core."""
    script = (
        f"import os; os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:{cores}])\n"
        "import torch, fednnnn_plugin as fp\n"
        "changes = {'train_args.comm_round': 1, 'train_args.client_num_per_round': 1}\n"
        f"fp.run('digits_noniid_b_fedavg', overrides=changes, output={str(tmp_path / 'run')!r})"
    )
    command = ["env", "OMP_PROC_BIND=true", "OMP_PLACES=cores", sys.executable, "-c", script]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    told = "warning: OMP_PROC_BIND, OMP_PLACES: OpenMP binds" in ended.stderr
    assert told == ("`env -u OMP_PROC_BIND -u OMP_PLACES`" in ended.stderr) == (cores == 2)
