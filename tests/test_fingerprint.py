"""Digests of code and models: the same for the same, another for what computes otherwise."""

import copy
import functools
import importlib
import logging
import operator
import pathlib
import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.nn import functional as F

from fednnnn_plugin.fingerprint import code_digest, model_digests, tensors_digest
from fednnnn_plugin.user_code import is_installed

SOURCE = """
import functools
import numpy as np
import torch
from torch import nn

SCALE = 1
PICKED = {"a", "b", "c"}
NONLINEAR = torch.sin
REDUCE = np.mean

class Config:
    __slots__ = ("width",)

    def __init__(self, width):
        self.width = width

CONFIG = Config(4)

@functools.lru_cache
def power():
    return 2

def activate(x):
    return torch.relu(NONLINEAR(x)) ** power() * CONFIG.width + REDUCE(x)  # as in the paper

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
"""


def digests(old: str = "", new: str = "", name: str = "no_module") -> dict[str, str]:
    """The digests of the source's network after an edit."""
    assert old in SOURCE
    namespace: dict[str, Any] = {"__name__": name}
    exec(SOURCE.replace(old, new, 1), namespace)
    torch.manual_seed(0)
    return model_digests(namespace["Net"]())


@pytest.mark.parametrize(
    ("edit", "part"),
    [
        (("torch.relu", "torch.tanh"), "code"),  # in a function that the model calls
        (("SCALE = 1", "SCALE = 2"), "code"),
        (("NONLINEAR = torch.sin", "NONLINEAR = torch.cos"), "code"),  # written in C
        (("CONFIG = Config(4)", "CONFIG = Config(5)"), "code"),  # in a slot
        (("return 2", "return 3"), "code"),  # in a function whose results are kept
        (("REDUCE = np.mean", "REDUCE = np.median"), "code"),  # in a wrapper of NumPy's
        (("factor = 2", "factor = 3"), "code"),  # of its base class
        (("0.5\n\n", "0.25\n\n"), "code"),  # in a property
        (('{"a", "b", "c"} |', '{"a", "b"} |'), "code"),
        (("x * SCALE", "x + SCALE"), "code"),  # in a lambda
        (("nn.Dropout(p)", "nn.Dropout(p / 2)"), "layout"),
        (("nn.Linear(2, 2)", "nn.Linear(3, 2)"), "layout"),
    ],
)
def test_digest_changes_with_the_computation(edit: tuple[str, str], part: str) -> None:
    assert digests()[part] != digests(*edit)[part]


def test_digest_has_the_code_of_a_started_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under ``python -m cProfile script.py``, ``__main__`` is in a file of Python's."""
    monkeypatch.setattr(sys.modules["__main__"], "__file__", torch.__file__, raising=False)
    edited = digests("torch.relu", "torch.tanh", name="__main__")
    assert digests(name="__main__")["code"] != edited["code"]


@pytest.mark.slow
def test_digest_ignores_comments_places_and_processes() -> None:
    expected = digests()
    assert digests("# as in the paper", "") == expected
    assert digests("SCALE = 1\n", "\n\nSCALE = 1\nUNUSED = 3\n", name="other") == expected
    program = f"{SOURCE}\ntorch.manual_seed(0)\nnet = Net()\n"
    program += "import fednnnn_plugin.fingerprint as f; print(f.model_digests(net))"
    printed = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert printed.strip() == str(expected)


@pytest.mark.slow  # which imports torch._dynamo
def test_digest_of_a_class_survives_its_use() -> None:
    """Torch puts a wrapper around an optimizer's step when the first one is made."""

    class Step(torch.optim.Optimizer):
        def step(self, closure: Any = None) -> None:
            return closure

    class Inheriting(Step):
        pass

    for kind in (Inheriting, Step):
        before = code_digest(kind)
        kind([torch.zeros(1)], {})
        assert code_digest(kind) == before


def test_digest_of_an_object_survives_its_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's and torch's own modules may get new names; what is installed may keep results."""

    class Place(pathlib.PurePosixPath):
        __slots__ = ("unset",)

    def network(x: Any, key: Any = len) -> Any:
        return F.gelu(x) * key(x) * len(str(place))

    place = Place("a", "b")
    before = code_digest(network, place, F.gelu)
    assert (hash(place), str(place)) == (hash(Place("a", "b")), "a/b")
    monkeypatch.setattr("builtins._", 3, raising=False)
    monkeypatch.setattr(torch._C._nn, "another", len, raising=False)
    assert code_digest(network, place, F.gelu) == before


def test_digest_follows_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a function or a class in it, from a package too; not of what is installed."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_package").mkdir()
    files = {"own_helper.py": "SCALE = 1\ndef scale(x): return x * SCALE\n"}
    files |= {"own_package/__init__.py": "", "own_package/deep.py": "BASE = 1\n"}
    uses = "def far():\n    from .deep import BASE\n    from . import deep\n    return BASE\n"
    files["own_package/use.py"] = uses

    def scale(x: Any) -> Any:
        from own_helper import scale

        class Inner:
            import own_helper

        return scale(x), Inner

    def found(edited: str = "", old: str = "", new: str = "") -> tuple[str, str]:
        for name, text in files.items():
            (tmp_path / name).write_text(text.replace(old, new) if name == edited else text)
        for name in [name for name in sys.modules if name.startswith("own_")]:
            del sys.modules[name]
        importlib.invalidate_caches()
        far = importlib.import_module("own_package.use").far
        return code_digest(scale), code_digest(far)

    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = found()
    assert found() == before
    assert found("own_helper.py", "SCALE = 1", "SCALE = 2")[0] != before[0]
    assert found("own_package/deep.py", "BASE = 1", "BASE = 2")[1] != before[1]
    assert found("own_helper.py", "def scale", "# changed\ndef scale") == before


def test_digest_of_a_class_in_a_function_has_its_globals(monkeypatch: pytest.MonkeyPatch) -> None:
    def made() -> Any:
        class Inner:
            source = SOURCE

        return Inner

    before = code_digest(made)
    monkeypatch.setitem(globals(), "__name__", "elsewhere")
    assert code_digest(made) == before
    monkeypatch.setitem(globals(), "SOURCE", "another")
    assert code_digest(made) != before


def test_digest_of_installed_objects_by_what_they_have() -> None:
    """As they are copied: pandas shows a part of a long series, a transform only a place."""
    numbers = list(range(200))
    series = pd.Series(numbers), pd.Series([*numbers[:100], 7, *numbers[101:]])
    scaled = [StandardScaler().fit([[0.0], [end]]) for end in (1.0, 2.0)]
    chained = [functools.partialmethod(operator.add, shift) for shift in (1, 2)]
    held = [SimpleNamespace(x=torch.arange(5000) % end) for end in (7, 8)]
    for one, other in (series, scaled, chained, held):
        assert code_digest(copy.deepcopy(one)) == code_digest(one) != code_digest(other)


def test_digest_survives_what_use_changes() -> None:
    """A logger's level, a generator's state, what is kept for the next call, a hook's number."""
    generators = [random.Random(0), np.random.default_rng(0), torch.Generator()]
    shifted, threads = np.vectorize(lambda x: x + 1, otypes=[float]), ThreadPoolExecutor(1)
    things = [logging.getLogger("mine"), *generators, threading.Lock(), shifted, threads]

    def layout() -> str:
        torch.manual_seed(random.randrange(100))
        model = nn.Linear(2, 2)
        model.handle = model.register_forward_hook(print)
        model.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return model_digests(model)["layout"]

    before = code_digest(*things), layout()
    logging.getLogger("mine").setLevel(logging.DEBUG)
    for generator in generators[:2]:
        generator.random()
    torch.rand(1, generator=generators[2])
    shifted(np.zeros(2))
    threads.submit(len, []).result()
    assert (code_digest(*things), layout()) == before


def test_digest_is_the_same_before_and_after_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which imports a submodule of a package that is the user's."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_helpers").mkdir()
    build = "def build():\n    from own_helpers import nets\n    return nets.WIDTH\n"
    (tmp_path / "own_helpers" / "__init__.py").write_text(build)
    (tmp_path / "own_helpers" / "nets.py").write_text("WIDTH = 3\n")

    def create() -> int:
        import own_helpers

        return own_helpers.build()

    before = code_digest(create)
    assert create() == 3
    assert code_digest(create) == before


def test_digest_of_arrays_by_all_they_are() -> None:
    """Also of those that are no tensors."""
    given = [np.arange(4.0), np.arange(4.0)[::-1], np.arange(4), np.zeros((2, 2)), np.array(["a"])]
    given += [np.array([len, None]), np.array([None, len]), np.array("2020", "datetime64")]
    assert len({code_digest(array) for array in given}) == len(given)
    assert code_digest(np.arange(4)[::2]) == code_digest(np.array([0, 2]))


def test_digest_of_a_layout_has_no_weights() -> None:
    """An LSTM has its weights in a list too; what is frozen is another layout."""
    first, second = nn.LSTM(2, 2), nn.LSTM(2, 2)
    assert model_digests(first)["layout"] == model_digests(second)["layout"]
    second.weight_hh_l0.requires_grad_(requires_grad=False)
    assert model_digests(first)["layout"] != model_digests(second)["layout"]


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages", "mine"])
def test_packages_count_as_installed_wherever_they_are(folder: str) -> None:
    """Of a cluster's modules, or Debian's: nobody follows torch's own code."""
    namespace: dict[str, Any] = {}
    exec(compile("def f(): pass", f"/opt/{folder}/torch/x.py", "exec"), namespace)
    assert is_installed(namespace["f"]) == (folder != "mine")


def test_digest_of_tensors_by_all_they_are() -> None:
    ones = torch.ones(2, 3)
    given = [ones, ones.double(), ones.view(3, 2), ones + 1e-7, ones.bfloat16(), torch.ones(())]
    given += [
        of for one in (ones, 2 * ones, ones.T) for of in (one.to_sparse(), one.to_sparse_csr())
    ]
    given += [one.to_sparse_csc() for one in (ones, torch.eye(2, 3))]
    found = {tensors_digest([(name, tensor)]) for tensor in given for name in "ab"}
    assert len(found) == 2 * len(given)
    assert tensors_digest([("a", ones)]) == tensors_digest([("a", ones.T.contiguous().T)])
    model = nn.BatchNorm1d(2)
    before = model_digests(model)
    model.running_mean += 1
    after = model_digests(model)
    assert [part for part in after if after[part] != before[part]] == ["weights"]
