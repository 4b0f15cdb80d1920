"""Whatever a run has on record, it is resumed, or the user is told what is wrong."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fednnnn_plugin as fp

RECIPE = "digits_noniid_b_fednnnn"
SETTINGS = {
    "train_args.client_num_per_round": 2,
    "train_args.epochs": 1,
    "train_args.checkpoint_every": 1,
    "device_args.using_gpu": False,
}
Files = dict[str, bytes]

NUMBERS = [*(0, -1, 10**400, 2**63, -0.0, 1e-320, 1e308, math.inf, -math.inf, math.nan), True]
VALUES = st.recursive(
    st.none() | st.sampled_from(NUMBERS) | st.integers(-3, 9) | st.text(max_size=8),
    lambda some: st.lists(some, max_size=4) | st.dictionaries(st.text(max_size=5), some),
    max_leaves=8,
)
RAW = [b"", b"\n", b"{}", b"[]", b"null", b'{"round": 1', b"\xff\xfe", b"[" * 2_000, b"1e999"]


def spliced(content: bytes) -> st.SearchStrategy[bytes]:
    """The content with other bytes in some place."""
    return st.builds(
        lambda start, length, new: content[:start] + new + content[start + length :],
        st.integers(0, len(content)),
        st.integers(0, 20) | st.just(len(content)),
        st.binary(max_size=9) | st.sampled_from(RAW),
    )


@st.composite
def changed(draw: st.DrawFn, content: bytes) -> bytes:
    """A JSON object with some of its values, or those inside them, replaced, missing or new."""
    values = json.loads(content)
    for _ in range(draw(st.integers(1, 3))):
        place, key = values, draw(st.sampled_from([*values, "new"]))
        while isinstance(place.get(key), dict) and draw(st.booleans()):
            place = place[key]
            key = draw(st.sampled_from([*place, "new"]))
        if draw(st.booleans()):
            place[key] = draw(VALUES)
        else:
            place.pop(key, None)
    return json.dumps(values).encode()


@st.composite
def metrics(draw: st.DrawFn, content: bytes) -> bytes:
    """Lines of records, some of them changed, in most orders."""
    lines = content.splitlines(keepends=True)
    chosen = draw(st.just(lines) | st.lists(st.sampled_from(lines), max_size=4))
    return b"".join(
        draw(st.just(line) | changed(line).map(lambda new: new + b"\n") | spliced(line))
        for line in chosen
    )


KINDS = {"metrics.jsonl": metrics, "summary.json": changed}


@st.composite
def damaged(draw: st.DrawFn, files: Files) -> Files:
    """A run's files, of which one or two hold something else."""
    names = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, unique=True))
    return files | {name: draw(KINDS[name](files[name]) | spliced(files[name])) for name in names}


def write(files: Files, folder: Path) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """The files of a run of two rounds."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    fp.run(RECIPE, overrides=SETTINGS | {"train_args.comm_round": 2}, output=folder)
    paths = [folder / "recipe.yaml", *(folder / name for name in KINDS)]
    paths += (folder / "checkpoint").iterdir()
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.mark.slow
@given(data=st.data())
def test_it_is_resumed_or_refused(
    whole: Files, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, more = tmp_path_factory.mktemp("run"), SETTINGS | {"train_args.comm_round": 3}
    write(data.draw(damaged(whole)), folder)
    try:
        run = fp.run(RECIPE, overrides=more, output=folder, resume=True)
        assert run.was_finished or list(run.metrics()["round"]) == [1, 2, 3]
        said = ""
    except (fp.UserError, fp.RunError) as error:
        said = str(error)
    assert all(line.isprintable() for line in said.split("\n")), said
