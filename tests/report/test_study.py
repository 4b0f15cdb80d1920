"""The one reader of a study folder."""

import math
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.report.study import is_study, read_study

from .conftest import OWN, PLAN, RATE, STEPS, write_study


def test_study_by_hand(tmp_path: Path) -> None:
    folder = write_study(
        tmp_path,
        OWN.format(0.75, 0.6, "1e-06"),  # the order in which they ended
        OWN.format(0.5, 0.5, 0.8),
        RATE.format(0.9, 0.1),
        RATE.format(0.9, 0.05),
        "own,FedNNNN,pruned,0.99,0.99,1,0.99,,1,trials/x,,0.5,1e-06",
    )
    study = read_study(folder)
    assert is_study(tmp_path)
    assert study.warnings == ()
    assert study.plan.keys == ["learning_rate", "beta", "gamma"]
    assert list(study.trials["learning_rate"][:2]) == [0.05, 0.1]  # the order of the grid
    assert list(study.trials["beta"][2:]) == [0.5, 0.5, 0.6]
    rate, own = study.plan.steps
    assert (len(rate), len(own), len(study.of(own))) == (2, 4, 3)
    assert study.chosen(rate) == {"learning_rate": 0.05}  # of equal ones the first of the grid
    assert study.chosen(own) == {"beta": 0.6, "gamma": 1e-6}
    assert math.isnan(study.of(own)["value"].iloc[0])  # of a pruned trial


def test_study_values_keep_their_last_bit(tmp_path: Path) -> None:
    values = [0.31622776601683794, 0.30000000000000004, 0.13436424411240122]
    step = {"name": "eta", "method": "PaperFedAvg", "rounds": 1, "grid": {"learning_rate": values}}
    folder = write_study(tmp_path, *(RATE.format(0.5, value) for value in values), steps=[step])
    assert list(read_study(folder).trials["learning_rate"]) == values


@pytest.mark.parametrize(
    "line",
    [
        RATE.format(0.9, 0.3),  # not of the grid
        RATE.format(0.9, 0.05),  # a second time
        RATE.format(1.9, 0.1),
        RATE.format("", 0.1),
        RATE.format(0.9, 0.1).replace("finished", "done"),
        "eta,Pap",
    ],
)
def test_study_leaves_out_wrong_lines(tmp_path: Path, line: str) -> None:
    study = read_study(
        write_study(tmp_path, RATE.format(0.8, 0.05), line, OWN.format(0.7, 0.5, 0.8))
    )
    assert list(study.trials["value"]) == [0.8, 0.7]
    (warning,) = study.warnings
    assert warning.startswith(f"{tmp_path / 'trials.csv'}: left out 1 of 3 lines")


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", b'"unclosed', b"a\n1,2,3", None])
def test_study_warns_of_an_unreadable_table(tmp_path: Path, content: bytes | None) -> None:
    path = write_study(tmp_path) / "trials.csv"
    path.unlink()
    path.mkdir() if content is None else path.write_bytes(content)
    study = read_study(tmp_path)
    assert len(study.trials) == 0
    (warning,) = study.warnings
    assert warning.startswith(f"{path}: cannot be read")
    assert "\n" not in warning


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(content=st.binary(max_size=200))
def test_study_reads_any_table_or_warns(tmp_path: Path, content: bytes) -> None:
    with (write_study(tmp_path, RATE.format(0.8, 0.05)) / "trials.csv").open("ab") as file:
        file.write(content)
    read_study(tmp_path)


VAST = {key: list(range(99)) for key in "abcd"}


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[1]", "steps: 1"),
        *(
            yaml.safe_dump({**PLAN, "steps": STEPS, **wrong})
            for wrong in (
                {"metric": None},
                {"steps": []},
                {"steps": [STEPS[0] | {"name": "../up"}]},
                {"steps": [STEPS[0] | {"grid": VAST}]},
                {"steps": [STEPS[0] | {"grid": {"state": [0.5]}}]},
            )
        ),
    ],
)
def test_study_with_a_damaged_plan_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "study.yaml").write_text(text)
    with pytest.raises(UserError, match=r"study\.yaml") as caught:
        read_study(tmp_path)
    assert "\n" not in str(caught.value)
