"""Nothing that is read runs code or writes elsewhere: no pickles, no YAML tags, no stray paths."""

import ast
import json
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import fednnnn_plugin as fp
from fednnnn_plugin.assembly.from_recipe import run_folder
from fednnnn_plugin.cli import main
from fednnnn_plugin.recipe import find_recipe, load_recipe
from fednnnn_plugin.recipe.validation import known_keys

from ..support.commands import RECIPE, quick_words

PACKAGE = Path(fp.__file__).parent
PICKLING = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
REFUSED = {
    *("os.system", "os.popen", "eval", "exec", "__import__"),
    *("torch.load", "torch.jit.load", "torch.package", "numpy.load", "np.load"),
    *("yaml.load_all", "yaml.full_load", "yaml.unsafe_load", "yaml.Loader"),
}


STARTING = ("parallel.py", "provenance.py")  # helpers of a search, and git


def names(module: Path) -> set[str]:
    """Return every name that a module imports or mentions, dotted as it stands there."""
    found = set()
    for node in ast.walk(ast.parse(module.read_text())):
        match node:
            case ast.Import(names=modules):
                found |= {module.name for module in modules}
            case ast.ImportFrom(module=str(module), names=imported):
                found |= {module, *(f"{module}.{name.name}" for name in imported)}
            case ast.Name() | ast.Attribute():
                found.add(ast.unparse(node))
    return found


def test_package_neither_unpickles_nor_evaluates() -> None:
    for path in PACKAGE.rglob("*.py"):
        found = names(path)
        assert not found & REFUSED, path
        assert "subprocess" not in found or path.name in STARTING, path
        assert "compile" not in found or path.name == "source_text.py", path  # never runs it
        assert "yaml.load" not in found or path.name == "reading.py"  # with a loader that is safe
        if path.name not in ("fork.py", "fork_messages.py", "forks.py"):  # their pipe
            assert not {name.partition(".")[0] for name in found} & PICKLING, path


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((f"train_args.{key}", "spy:x") for key in ("federated_optimizer", "client_method")),
        *((f"train_args.{key}", "spy:x") for key in ("client_sampling", "client_optimizer")),
        *((f"train_args.{key}", "spy:x") for key in ("train_transform", "client_availability")),
        ("train_args.learning_rate_schedule", "spy:x"),
        *((key, "spy:x") for key in ("train_args.loss", "model_args.model", "data_args.dataset")),
        ("validation_args.metrics", ["spy:x"]),
    ],
)
def test_named_code_needs_permission(own_code: Path, key: str, value: object) -> None:
    Path("spy.py").write_text("open('was-here', 'w')")
    option = f"--set={key}={json.dumps(value)}"
    for command in (["run"], ["tune", "--grid=learning_rate=0.1", "--rounds=1"]):
        ended = CliRunner().invoke(main, [*command, RECIPE, option])
        said = ended.stderr.splitlines()[-1]
        assert ended.exit_code == 2, ended.output
        assert key in said
        assert "--allow-code" in said
    assert CliRunner().invoke(main, ["partition", RECIPE, option]).exit_code in (0, 2)
    with pytest.raises(fp.UserError, match=rf"{key}: .* add allow_code=True"):
        fp.run(RECIPE, overrides={key: value})
    assert not Path("was-here").exists()
    assert not {Path("runs"), Path("studies")} & {*Path().iterdir()}


@pytest.fixture
def watched(commands: Any, tmp_path: Path) -> Callable[..., Any]:
    """Run a command; check that it changed files of this folder only, and began nothing."""
    log = tmp_path / "log"

    def run(*arguments: str | Path, folder: Path, within: Path | None) -> Any:
        ended = commands.run(*arguments, folder=folder, watch=str(log))
        for line in log.read_text().splitlines():
            if line == "subprocess.Popen git":  # which commit this is
                continue
            assert within, line
            assert line.partition(" ")[2].startswith(str(within)), line
        log.unlink()
        return ended

    return run


@pytest.mark.slow
def test_commands_load_no_pickle_and_start_nothing(watched: Any, tmp_path: Path) -> None:
    for arguments in (
        quick_words("run"),
        quick_words("run", "--resume", comm_round=2),
        ["partition", RECIPE, "--plot", "clients.svg"],
        ["report", "run"],
        ["recipes", "copy", "mine"],
    ):
        ended = watched(*arguments, folder=tmp_path, within=tmp_path)
        assert ended.status == 0, ended


# The first takes downloads and decoded images, by the user's word; the others are only read.
NOT_WRITTEN = ("data_cache_dir", "data_dir", "gpu_mapping_file")
OF_CROSS_SILO = ("save_path", "server_state_path", "metrics_path", "prometheus_path")
PATHS = [
    f"{section}.{key}"
    for key, section in known_keys().items()
    if key.endswith(("_path", "_dir", "_folder", "_file")) and key not in NOT_WRITTEN
]


@pytest.mark.slow
def test_recipe_writes_into_its_output_folder_only(watched: Any, tmp_path: Path) -> None:
    here = tmp_path / "a" / "here"
    here.mkdir(parents=True)
    places = ["../../escape", "/proc/self/escape", "~/.x"]
    for key, place in zip(OF_CROSS_SILO, cycle(places), strict=False):
        refused = watched(*quick_words("out", **{key: place}), folder=here, within=None)
        assert refused.check_one_line(2).startswith(f"--set tracking_args.{key}: ")
    paths = [key for key in PATHS if key.split(".")[1] not in OF_CROSS_SILO]
    assert len(paths) > 7
    keys = dict(zip(paths, cycle(places), strict=False))
    ended = watched(*quick_words("out", **keys), folder=here, within=here / "out")
    assert ended.status == 0, ended


def test_recipe_name_leads_nowhere_else(tmp_path: Path) -> None:
    for name in ("..yaml", "-x.yaml", "~root.yaml", "a b.yaml"):
        (tmp_path / name).write_text(find_recipe(RECIPE).read_text())
        assert run_folder(load_recipe(tmp_path / name)).parent == Path("runs").absolute()
