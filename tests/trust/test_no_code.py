"""Nothing that is read runs code or writes elsewhere: no pickles, no YAML tags, no stray paths."""

import ast
import gzip
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import fednnnn_plugin
from fednnnn_plugin.data.cifar10 import CLASSES
from fednnnn_plugin.recipe import find_recipe
from fednnnn_plugin.recipe.build import known_keys

PACKAGE = Path(fednnnn_plugin.__file__).parent
#: CIFAR-10's own batches are pickles; they are read by admitted instructions, see its tests.
UNPICKLES = PACKAGE / "data" / "cifar10_batches.py"
PICKLING = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
RUNNING = {"subprocess", "os.system", "os.popen", "eval", "exec", "compile", "__import__"}
LOADING = {"torch.load", "torch.jit.load", "torch.package", "numpy.load", "np.load"}
UNSAFE_YAML = {"yaml.load_all", "yaml.full_load", "yaml.unsafe_load", "yaml.Loader"}

Quick = Callable[..., list[str]]


def names(tree: ast.AST) -> Iterator[str]:
    """Yield every name that a module imports or mentions, dotted as it stands there."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=modules):
                yield from (module.name for module in modules)
            case ast.ImportFrom(module=str(module), names=found):
                yield module
                yield from (f"{module}.{name.name}" for name in found)
            case ast.Name(id=name):
                yield name
            case ast.Attribute():
                yield ast.unparse(node)


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: p.name)
def test_no_module_unpickles_or_runs_what_it_reads(path: Path) -> None:
    tree = ast.parse(path.read_text())
    found = set(names(tree))
    roots = {name.partition(".")[0] for name in found}
    assert not found & (RUNNING | LOADING | UNSAFE_YAML)
    assert path == UNPICKLES or not roots & PICKLING
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if ast.unparse(call.func) == "yaml.load":
            assert path.name in {"settings.py", "reading.py"}  # with loaders that are safe


def idx(*dimensions: int, body: bytes = b"") -> bytes:
    return (
        bytes([0, 0, 8, len(dimensions)]) + struct.pack(f">{len(dimensions)}I", *dimensions) + body
    )


@pytest.fixture
def data(tmp_path: Path) -> Path:
    raw = tmp_path / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part in ("train", "t10k"):
        images, labels = idx(20, 28, 28, body=bytes(20 * 784)), idx(20, body=bytes(range(10)) * 2)
        (raw / f"{part}-images-idx3-ubyte").write_bytes(images)
        (raw / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
        for label in CLASSES:
            folder = tmp_path / "data" / "CIFAR-10-images" / part.replace("t10k", "test") / label
            folder.mkdir(parents=True)
            Image.new("RGB", (32, 32), (1, 9, 9)).save(folder / "0.png")
    return tmp_path / "data"


def check_changes(log: Path, folder: Path | None) -> None:
    """Check that a watched command changed files of this folder only, and began nothing."""
    for line in log.read_text().splitlines():
        path = line.partition(" ")[2]
        assert folder, line
        assert path.startswith(str(folder)), line
    log.unlink()


@pytest.mark.slow
def test_no_command_loads_a_pickle_or_starts_a_process(
    commands: Any, quick: Quick, data: Path, tmp_path: Path
) -> None:
    tiny = {"client_num_in_total": 2, "client_num_per_round": 2, "epochs": 1, "comm_round": 1}
    tiny |= {"data_args.data_cache_dir": "data", "data_args.min_samples": 1, "batch_size": 10}
    log = tmp_path / "log"
    for arguments in (
        quick("run"),
        quick("run", "--resume", comm_round=4),
        quick("mnist", recipe="mnist_iid_b_fednnnn", **tiny),
        quick("cifar10", recipe="cifar10_iid_b_normnorm", **tiny),
        ["partition", "digits_noniid_b_fedavg", "--plot", "clients.svg"],
        ["report", "run", "mnist", "cifar10"],
        ["recipes", "copy", "mine"],
    ):
        ended = commands.run(*arguments, folder=tmp_path, kind="watch", log=str(log))
        assert ended.status == 0, ended
        check_changes(log, tmp_path)


PATHS = [
    f"{section}.{key}"
    for key, section in known_keys().items()
    if key.endswith(("_path", "_dir", "_folder", "_file"))
    # The first takes downloads and decoded images, by the user's word; the others are only read.
    and key not in ("data_cache_dir", "data_dir", "gpu_mapping_file")
]


@pytest.mark.slow
@pytest.mark.parametrize("place", ["{here}/../escape", "../../escape", "/proc/self/escape", "~/.x"])
def test_a_recipe_writes_into_its_output_folder_only(
    commands: Any, quick: Quick, tmp_path: Path, place: str
) -> None:
    assert len(PATHS) > 10
    here, log = tmp_path / "a" / "here", tmp_path / "log"
    here.mkdir(parents=True)
    paths = {key: place.format(here=here) for key in PATHS}
    for key in ("tracking_args.save_path", "tracking_args.server_state_path"):  # of cross-silo
        refused = commands.run(*quick("out", **{key: paths.pop(key)}), folder=here)
        assert refused.check_one_line(2).startswith(f"--set {key}: ")
    ended = commands.run(*quick("out", **paths), folder=here, kind="watch", log=str(log))
    assert ended.status == 0, ended
    check_changes(log, here / "out")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["..yaml", "...yaml", ".yaml", "-x.yaml", "~root.yaml", "a b.yaml"]
)
def test_a_recipe_s_name_leads_nowhere_else(
    commands: Any, quick: Quick, tmp_path: Path, name: str
) -> None:
    here, log = tmp_path / "here", tmp_path / "log"
    here.mkdir()
    (here / name).write_text(find_recipe("digits_noniid_b_fednnnn").read_text())
    arguments = [
        a for a in quick("", recipe=f"./{name}", comm_round=1) if a not in ("--output", "")
    ]
    ended = commands.run(*arguments, folder=here, kind="watch", log=str(log))
    assert ended.status == 0, ended
    check_changes(log, here / "runs")
    assert all(path.parent == here / "runs" for path in here.glob("runs/*"))


TAGS = [
    "!!python/object/apply:os.system ['touch escape']",
    "!!python/object/new:os.system ['touch escape']",
    "!!python/object:pathlib.Path {}",
    "!!python/name:os.system",
    "!!python/module:antigravity",
    "!!python/tuple [1, 2]",
    "!!binary dG91Y2g=",
    "!include /etc/passwd",
    "!!set {a, b}",
    "&a [*a]",
]


@pytest.mark.parametrize("tag", TAGS)
def test_a_tag_is_a_mistake_and_does_nothing(commands: Any, tmp_path: Path, tag: str) -> None:
    text = find_recipe("digits_noniid_b_fednnnn").read_text()
    recipe, log = tmp_path / "mine.yaml", tmp_path / "log"
    for changed in (f"{tag}\n", f"{text}\nextra: {tag}\n", f"{text}\n? {tag}\n: 1\n"):
        recipe.write_text(changed)
        ended = commands.run("run", recipe, folder=tmp_path, kind="watch", log=str(log))
        assert ended.check_one_line(2).startswith(f"{recipe}: ")
        check_changes(log, None)
    override = f"train_args.beta={tag}"
    ended = commands.run(
        "run",
        "digits_noniid_b_fednnnn",
        "--set",
        override,
        folder=tmp_path,
        kind="watch",
        log=str(log),
    )
    assert ended.check_one_line(2).startswith("--set train_args.beta")
    check_changes(log, None)
