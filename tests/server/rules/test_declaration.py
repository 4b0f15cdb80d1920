"""The decorator of a rule: what it refuses; the examples in the docstrings run."""

import doctest
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import Optimizer

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.server.rules import RULES, load_rule, positive, rule
from fednnnn_plugin.user_code import on_threads

pytestmark = pytest.mark.usefixtures("rules_taken_back")


class Own(Optimizer):
    def __init__(self, params: Any, scale: float = 1.0) -> None:
        super().__init__(params, {"scale": scale, "threads": torch.get_num_threads()})

    def step(self, closure: Any = None, *, mean_client_norm: float = 0.0) -> Any:
        """Do nothing."""


class Taking(torch.optim.SGD):
    def step(self, closure: Any = None, *, learning_rate: float) -> None: ...


def test_declaration_registers_and_may_be_repeated() -> None:
    for _ in range(2):
        assert rule(own_scale=positive(argument="scale"), wants=("mean_client_norm",))(Own) is Own
        made = RULES["Own"]
        assert (made.optimizer, made.evaluated, list(made.keys)) == (Own, "average", ["own_scale"])
        assert list(RULES)[-1] == "Own"
    with on_threads(2):
        optimizer = made.make([torch.nn.Parameter(torch.zeros(1))], {"own_scale": 2.0})
    assert optimizer.defaults == {"scale": 2.0, "threads": 1}


def test_declaration_in_a_module_that_raises_is_undone(own_code: Path) -> None:
    lines = ("import torch", "from fednnnn_plugin import rule", "", "@rule()")
    lines += ("class Left(torch.optim.Optimizer):", "    pass", "raise ValueError('after it')")
    (own_code / "half.py").write_text("\n".join(lines))
    with pytest.raises(UserError, match=r"^here: half:Left: does not import: .*after it"):
        load_rule("half:Left", "here")
    assert "Left" not in RULES


@pytest.mark.parametrize(
    ("optimizer", "declared", "named"),
    [
        (object, {}, "torch.optim.Optimizer"),
        (type("FedNNNN", (Own,), {}), {}, "FedNNNN"),
        (Own, {"scale": 1.0}, "scale"),
        (Own, {"evaluated": "best"}, "best"),
        (Own, {"wants": "mean_client_norm"}, "'mean_client_norm'"),
        (Taking, {}, "'learning_rate'"),
        (torch.optim.Adam, {"wants": ("buffers",)}, "'buffers'"),
        (Own, {"wants": 5}, "wants: 5: must be a tuple of some of"),
        (Own, {"wants": [["clients"]]}, "wants: [['clients']]: must"),
    ],
)
def test_declaration_that_cannot_work_is_refused(
    optimizer: Any, declared: dict[str, Any], named: str
) -> None:
    with pytest.raises(UserError, match=r"^rule: ") as refused:
        rule(**declared)(optimizer)
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)
    assert optimizer not in [each.optimizer for each in RULES.values()]


@pytest.mark.parametrize("module", ["accumulator", "rules.fednnnn", "rules.fedexp", "rules"])
def test_docstring_examples_run(module: str) -> None:
    result = doctest.testmod(import_module(f"fednnnn_plugin.server.{module}"))
    assert result.attempted > result.failed == 0
