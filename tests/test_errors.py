"""A user's mistake has its parts, wherever it goes."""

import pickle

import pytest

from fednnnn_plugin.errors import MAX_LINES, UserError, UserErrors

HIGH = UserError("train_args.beta", 2.0, "must be from 0 to 1")
LACKS = UserError("recipe.yaml", "no such file")


def test_mistake_is_a_line_of_its_parts() -> None:
    assert str(HIGH) == "train_args.beta: 2.0: must be from 0 to 1"
    assert str(LACKS) == "recipe.yaml: no such file"
    assert str(UserError("counts", allowed="must be numbers")) == "counts: must be numbers"
    assert (HIGH.where, HIGH.given, HIGH.allowed) == (
        "train_args.beta",
        "2.0",
        "must be from 0 to 1",
    )
    assert str(HIGH.at("--beta")) == "--beta: 2.0: must be from 0 to 1"


def test_several_mistakes_are_a_line_each_once() -> None:
    several = UserErrors([HIGH, UserErrors([LACKS, HIGH])])
    assert str(several) == f"{HIGH}\n{LACKS}"
    many = UserErrors(UserError(f"key_{number}", "unknown") for number in range(MAX_LINES + 3))
    assert str(many).splitlines()[MAX_LINES:] == ["... and 3 more"]


@pytest.mark.parametrize("error", [HIGH, UserErrors([HIGH, LACKS])])
def test_mistake_is_the_same_in_another_process(error: UserError) -> None:
    sent = pickle.loads(pickle.dumps(error))
    assert (type(sent), str(sent)) == (type(error), str(error))
    assert [one.allowed for one in sent.each] == [one.allowed for one in error.each]
