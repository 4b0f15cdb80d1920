"""Digests of code and models: the same for the same, another for what computes otherwise."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

from fednnnn_plugin.fingerprint import code_digest, model_digests, tensors_digest

SOURCE = """
import torch
from torch import nn

SCALE = 1
PICKED = {"a", "b", "c"}

def activate(x):
    return torch.relu(x)  # as in the paper

class Base(nn.Module):
    factor = 2

class Net(Base):
    def __init__(self, p=0.5):
        super().__init__()  # refers to Net: a circle
        self.fc, self.dropout = nn.Linear(2, 2), nn.Dropout(p)

    @property
    def half(self):
        return 0.5

    @torch.no_grad()
    def forward(self, x):
        inner = lambda x: x * SCALE
        return inner(activate(self.fc(x))) if "a" in {"a", "b", "c"} | PICKED else self.half

class Step(torch.optim.Optimizer):
    def step(self, closure=None):
        return activate(closure)
"""


def made(*edit: str, name: str = "no_module") -> dict[str, Any]:
    """What the source defines after an edit."""
    assert not edit or edit[0] in SOURCE
    namespace: dict[str, Any] = {"__name__": name}
    exec(SOURCE.replace(*edit) if edit else SOURCE, namespace)
    return namespace


def digests(namespace: dict[str, Any]) -> dict[str, str]:
    torch.manual_seed(0)
    return model_digests(namespace["Net"]())


@pytest.mark.parametrize(
    ("edit", "part"),
    [
        (("torch.relu", "torch.tanh"), "code"),  # in a function that the model calls
        (("SCALE = 1", "SCALE = 2"), "code"),
        (("factor = 2", "factor = 3"), "code"),  # of its base class
        (("0.5\n\n", "0.25\n\n"), "code"),  # in a property
        (('{"a", "b", "c"} |', '{"a", "b"} |'), "code"),
        (("x * SCALE", "x + SCALE"), "code"),  # in a lambda
        (("nn.Dropout(p)", "nn.Dropout(p / 2)"), "layout"),
        (("nn.Linear(2, 2)", "nn.Linear(3, 2)"), "layout"),
    ],
)
def test_digest_changes_with_the_computation(edit: tuple[str, str], part: str) -> None:
    assert digests(made())[part] != digests(made(*edit))[part]


@pytest.mark.slow
def test_digest_ignores_comments_places_and_processes() -> None:
    expected = digests(made())
    assert digests(made("# as in the paper", "")) == expected
    assert digests(made("SCALE = 1\n", "\n\nSCALE = 1\nUNUSED = 3\n", name="other")) == expected
    program = (
        f"{SOURCE}\nfrom fednnnn_plugin.fingerprint import model_digests\n"
        "torch.manual_seed(0)\nprint(model_digests(Net()))"
    )
    printed = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert printed.strip() == str(expected)


@pytest.mark.slow  # which imports torch._dynamo
def test_digest_of_a_class_survives_its_use() -> None:
    """Torch puts a wrapper around an optimizer's step when the first one is made."""
    step = made()["Step"]
    before = code_digest(step)
    step([torch.zeros(1)], {})
    assert code_digest(step) == before
    assert code_digest(made("activate(closure)", "closure")["Step"]) != before


def test_digest_of_tensors_by_all_they_are() -> None:
    ones = torch.ones(2, 3)
    given = [ones, ones.double(), ones.view(3, 2), ones + 1e-7, ones.bfloat16(), torch.ones(())]
    found = {tensors_digest([(name, tensor)]) for tensor in given for name in "ab"}
    assert len(found) == 2 * len(given)
    assert tensors_digest([("a", ones)]) == tensors_digest([("a", ones.T.contiguous().T)])
    model = nn.BatchNorm1d(2)
    before = model_digests(model)
    model.running_mean += 1
    after = model_digests(model)
    assert [part for part in after if after[part] != before[part]] == ["weights"]
