import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednnnn_plugin.report.records import MAX_LINE_BYTES, SCALARS, Records, read_records


def read(tmp_path: Path, *lines: str | bytes) -> tuple[Records, list[str]]:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"".join(x if isinstance(x, bytes) else x.encode() + b"\n" for x in lines))
    return read_records(path)


def test_every_quantity_of_a_line(tmp_path: Path) -> None:
    line = {
        "round": 3,
        "test_acc": 0.91,
        "test_loss": 0.3,
        "served_test_acc": None,
        "mean_update_norm": 0.25,
        "mean_client_norm": 0.5,
        "server_update_norm": 0.35,
        "integrated_norm": 1.25,
        "client_norms": [0.4, 0.5, 0.7],
        "layers": {
            "fc2": {"mean_update_norm": 0.1, "mean_client_norm": 0.2, "server_update_norm": 0.15}
        },
        "clients": 20,
        "rejected": 1,
        "degenerate": True,
        "seconds": {"train": 1.0, "aggregate": 0.1, "evaluate": 0.2},
    }
    records, problems = read(tmp_path, json.dumps(line))
    assert problems == []
    assert records.rounds.tolist() == [3]
    for name in SCALARS:
        expected = line[name]
        found = records.columns[name][0]
        assert math.isnan(found) if expected is None else found == expected
    assert records.columns["client_norm_min"].tolist() == [0.4]
    assert records.columns["client_norm_median"].tolist() == [0.5]
    assert records.columns["client_norm_max"].tolist() == [0.7]
    assert {name: column.tolist() for name, column in records.layers["fc2"].items()} == {
        "mean_update_norm": [0.1],
        "mean_client_norm": [0.2],
        "server_update_norm": [0.15],
    }
    assert records.degenerate == 1


@pytest.mark.parametrize(
    ("lines", "rounds", "said"),
    [
        (
            ['{"round": 1}', b'{"round": 2, "te'],
            [1],
            ["line 2: the last line is cut off; left out"],
        ),
        (['{"round": 1}', b'{"round": 2}'], [1, 2], []),
        (['{"round": 1}', "", '{"round": 2}'], [1, 2], []),
        (["{", '{"round": 2}'], [2], ["line 1: no JSON object"]),
        (["[1]", '{"round": 2}'], [2], ["line 1: no JSON object"]),
        (["[" * 100_000, '{"round": 2}'], [2], ["line 1: no JSON object"]),
        ([b"\xff\xfe\n", '{"round": 2}'], [2], ["line 1: no JSON object"]),
        (['{"round": 2}', '{"round": 1}'], [1, 2], []),
        (
            ['{"round": true}', '{"round": 2}'],
            [2],
            ["line 1: round is True, must be an integer from 1"],
        ),
        (
            ['{"test_acc": 0.5}', '{"round": 2}'],
            [2],
            ["line 1: round is None, must be an integer from 1"],
        ),
        (
            ['{"round": 0}', '{"round": 2}'],
            [2],
            ["line 1: round is 0, must be an integer from 1"],
        ),
        (
            ["{" + " " * MAX_LINE_BYTES + "}", '{"round": 2}'],
            [2],
            [f"line 1: longer than {MAX_LINE_BYTES} bytes; left out"],
        ),
    ],
)
def test_lines_that_are_left_out(
    tmp_path: Path, lines: list[str | bytes], rounds: list[int], said: list[str]
) -> None:
    records, problems = read(tmp_path, *lines)
    assert records.rounds.tolist() == rounds
    assert problems == said


def test_a_round_given_twice_counts_as_the_later_line_has_it(tmp_path: Path) -> None:
    records, problems = read(
        tmp_path, '{"round": 1, "test_acc": 0.1}', '{"round": 1, "test_acc": 0.2}'
    )
    assert records.columns["test_acc"].tolist() == [0.2]
    assert problems == ["line 2: round 1 a second time; the later line counts"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('"test_acc": NaN', "test_acc is 'NaN', must be a number, from 0 to 1"),
        ('"test_acc": 1.5', "test_acc is 1.5, must be a number, from 0 to 1"),
        ('"test_acc": "0.5"', "test_acc is '0.5', must be a number, from 0 to 1"),
        ('"test_acc": true', "test_acc is True, must be a number, from 0 to 1"),
        ('"test_loss": 1e999', "test_loss is inf, must be a number, finite and not negative"),
        (
            '"mean_client_norm": -1',
            "mean_client_norm is -1, must be a number, finite and not negative",
        ),
        (
            f'"clients": {10**400}',
            "clients is a huge integer, must be a number, finite and not negative",
        ),
        ('"client_norms": [1, 2]', "client_norms must be [minimum, median, maximum]"),
        (
            '"client_norms": [1, [], 3]',
            "client_norm_median is a list, must be a number, finite and not negative",
        ),
        ('"layers": 3', "layers must be an object of modules"),
        ('"layers": {"fc1": 3}', "layers.'fc1' must be an object of norms"),
        (
            '"layers": {"fc1": {"mean_update_norm": {}}}',
            "layers.fc1.mean_update_norm is a dict, must be a number, finite and not negative",
        ),
    ],
)
def test_a_value_that_is_no_number_is_left_out_alone(tmp_path: Path, text: str, said: str) -> None:
    records, problems = read(tmp_path, f'{{"round": 1, "served_test_acc": 0.25, {text}}}')
    assert problems == [f"round 1: {said}"]
    assert records.columns["served_test_acc"].tolist() == [0.25]
    name = text.split('"')[1]
    if name in records.columns:
        assert np.isnan(records.columns[name]).all()


def test_modules_that_come_and_go(tmp_path: Path) -> None:
    norms = '{"mean_update_norm": 1, "mean_client_norm": 2, "server_update_norm": 3}'
    records, problems = read(
        tmp_path,
        f'{{"round": 1, "layers": {{"a": {norms}}}}}',
        f'{{"round": 2, "layers": {{"b": {norms}}}}}',
    )
    assert problems == []
    np.testing.assert_array_equal(records.layers["a"]["mean_client_norm"], [2, np.nan])
    np.testing.assert_array_equal(records.layers["b"]["mean_client_norm"], [np.nan, 2])


def test_no_plain_file(tmp_path: Path) -> None:
    assert read_records(tmp_path / "none")[1] == ["no such file"]
    assert read_records(tmp_path)[1] == ["not a plain file"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [*SCALARS, "round", "client_norms", "layers", "fc1", "degenerate", "seconds"]
            ),
            inner,
            max_size=6,
        )
    ),
    max_leaves=20,
)


@given(st.lists(json_values, max_size=6))
def test_whatever_the_lines_say_columns_are_whole(
    tmp_path_factory: pytest.TempPathFactory, values: list[Any]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    records, _ = read(folder, *(json.dumps(value) for value in values))
    rounds = records.rounds
    assert (np.diff(rounds) > 0).all()
    columns = [*records.columns.values()]
    columns += [norm for norms in records.layers.values() for norm in norms.values()]
    for column in columns:
        assert column.shape == rounds.shape
        assert not np.isinf(column).any()
        assert not (column < 0).any()


@given(st.binary(max_size=300))
def test_any_bytes_are_read_without_an_exception(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes
) -> None:
    records, problems = read(tmp_path_factory.mktemp("bytes"), raw)
    assert records.rounds.size or problems or not raw.strip()
