"""Digests of code and models: the same for the same, another for what computes otherwise."""

import copy
import datetime
import functools
import importlib
import itertools
import linecache
import logging
import operator
import random
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from fednnnn_plugin.fingerprint import code_digests, model_digests, tensors_digest
from fednnnn_plugin.user_code import is_installed

SOURCE = """
import functools
import numpy as np
import torch
from torch import Tensor, nn

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


CELLS = itertools.count()


def cell(text: str, **namespace: Any) -> dict[str, Any]:
    """Run a text as a notebook does, whose text is known; return its variables."""
    file = f"cell-{next(CELLS)}"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    namespace = {"__name__": "__main__"} | namespace
    exec(compile(text, file, "exec"), namespace)
    return namespace


def digests(old: str = "", new: str = "", name: str = "no_module") -> dict[str, str]:
    """The digests of the source's network after an edit."""
    assert old in SOURCE
    namespace = cell(SOURCE.replace(old, new, 1), __name__=name)
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
        (("x * SCALE", "x + SCALE"), "code"),  # in a lambda
        (("nn.Dropout(p)", "nn.Dropout(p / 2)"), "layout"),
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
def test_digest_ignores_comments_places_and_processes(tmp_path: Path) -> None:
    expected = digests()
    assert digests("# as in the paper", "") == expected
    documented = "return torch.relu", "'It.'\n    return torch.relu"
    assert digests(*documented) == expected
    assert digests("SCALE = 1\n", "\n\nSCALE = 1\nUNUSED = 3\n", name="other") == expected
    program = f"{SOURCE}\ntorch.manual_seed(0)\nnet = Net()\n"
    program += "import fednnnn_plugin.fingerprint as f; print(f.model_digests(net))"
    (tmp_path / "program.py").write_text(program)
    printed = subprocess.check_output([sys.executable, tmp_path / "program.py"], text=True)
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
        before = code_digests(kind)
        kind([torch.zeros(1)], {})
        assert code_digests(kind) == before


@pytest.fixture
def own_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write modules, whose names begin with ``own_``, and import the one of a name anew."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def imported(files: dict[str, str], name: str) -> Any:
        for file, text in files.items():
            (tmp_path / file).parent.mkdir(exist_ok=True)
            (tmp_path / file).write_text(text)
        for module in [module for module in sys.modules if module.startswith("own_")]:
            del sys.modules[module]
        importlib.invalidate_caches()
        return importlib.import_module(name)

    return imported


EDITED = """
import functools
import torch

def twice(function):
    @functools.wraps(function)
    def inner(*of): return function(function(*of))
    return inner

class Net(torch.nn.Module):
    def __init__(self): super().__init__()

    @twice
    def forward(self, x): return [torch.relu(x) for _ in range(2)]

    def told(self): return [*(text * 2 for text in self)] + [*("one" * i for i in range(2))]

    value = property(lambda self: 1)
    value = value.getter(lambda self: (yield 2))
"""


def test_digest_is_of_the_code_that_runs(
    own_modules: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its file may be edited, and not reloaded: in places alone, or in what it computes."""
    files = {"own_edited.py": EDITED}
    net = own_modules(files, "own_edited").Net()
    before = model_digests(net)
    (tmp_path / "own_edited.py").write_text(f"# a comment\n\n{EDITED}")
    assert model_digests(net) == before
    assert not caplog.text
    edited = EDITED.replace("relu", "tanh")
    for text in (EDITED.replace("one", "two"), edited, "class Net:"):
        (tmp_path / "own_edited.py").write_text(text)
        stale = model_digests(net)["code"]
        assert "own_edited.py: was changed since it was imported" in caplog.text
        caplog.clear()
        assert stale != before["code"]
    again = own_modules({"own_edited.py": edited}, "own_edited").Net()
    assert model_digests(again)["code"] not in (stale, before["code"])
    assert not caplog.text


OWN_MAIN = """
from own_tables import *

def f():
    from own_tables import layers as l
    return TABLE, l

def g():
    import own_tables.first as part
    return part.used()

def h():
    import own_tables.second as part
    return part.used()

def k():
    from own_helper import scale

    class Inner:
        import own_helper

    return scale, Inner
"""
OWN_TABLES = """
try:
    from .first import ROWS as TABLE, UNUSED
except ImportError:
    TABLE = []
from .layers import layers
"""
OWN_LAYERS = """
BASE = 3

def layers():
    from .deep import BASE as B
    from . import deep
    return B + BASE, 1
"""


@pytest.mark.parametrize(
    ("file", "old", "new", "same"),
    [
        # of a constant that is imported under another name
        ("own_tables/first", "N = 1", "N = 2", False),
        ("own_tables/first", "UNUSED = [1]", "UNUSED = [2]", True),
        # a function named as the module that it is in
        ("own_tables/layers", "BASE, 1", "BASE, 2", False),
        # a variable of the module beside one of its name that is imported as another
        ("own_tables/layers", "BASE = 3", "BASE = 4", False),
        # beside another module of the same functions
        ("own_tables/second", "return 1", "return 2", False),
        ("own_tables/deep", "BASE = 1", "BASE = 2", False),
        ("own_helper", "SCALE = 1", "SCALE = 2", False),
        ("own_helper", "def scale", "# changed\ndef scale", True),
    ],
)
def test_digest_follows_imports(
    own_modules: Any, file: str, old: str, new: str, same: bool
) -> None:
    files = {"own_main.py": OWN_MAIN, "own_tables/__init__.py": OWN_TABLES}
    first = "N = 1\nROWS = [N]\nUNUSED = [1]\ndef used(): return 1\n"
    files |= {"own_tables/first.py": first, "own_tables/second.py": "def used(): return 1\n"}
    files |= {"own_tables/layers.py": OWN_LAYERS, "own_tables/deep.py": "BASE = 1\n"}
    files |= {"own_helper.py": "SCALE = 1\ndef scale(x): return x * SCALE\n"}

    def found() -> dict[str, str]:
        main = own_modules(files, "own_main")
        return code_digests(main.f, main.g, main.h, main.k)

    before = found()
    assert before.keys() == {"code"}
    name = f"{file}.py"
    assert old in files[name]
    files[name] = files[name].replace(old, new)
    assert (found() == before) == same


FILLED = """
WIDTH, T, U, V, W, X = 1, [], {}, [], [[]], []
UNUSED = []
T.append(1)
for number in range(2):
    width = WIDTH * number
    U[number] = width
    UNUSED.append(1)
try:
    import nothing_of_this_name
except ImportError:
    V = [2]
try:
    import math
except ImportError:
    pass
else:
    X.append(1)
if not T:
    W[0].append(1)
else:
    W[0].append(2)
    def unused(): return W[0].append(3)
def fits(n): return n < 20
for NARROW in (64, 32, 16, 8):
    if fits(NARROW): break
while (GROWN := WIDTH + len(T)) < 0: pass
def f(): return T, U, V, W, X, NARROW, GROWN
"""


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("T.append(1)", "T.append(2)", False),
        ("WIDTH * number", "WIDTH + number", False),
        ("range(2)", "range(3)", False),
        ("W, X = 1", "W, X = 2", False),
        ("V = [2]", "V = [3]", False),
        ("if not T", "if not V", False),
        ("W[0].append(2)", "W[0].append(3)", False),
        ("X.append(1)", "X.append(2)", False),
        ("n < 20", "n < 10", False),
        ("WIDTH + len", "WIDTH - len", False),
        ("UNUSED.append(1)", "UNUSED.append(2)", True),
        ("return W[0].append(3)", "return W[0]", True),
    ],
)
def test_digest_has_what_fills_a_variable(old: str, new: str, same: bool) -> None:
    assert old in FILLED
    before, after = (code_digests(cell(text)["f"]) for text in (FILLED, FILLED.replace(old, new)))
    assert (after == before) == same
    assert before.keys() == {"code"}


def test_digest_has_no_last_value_of_a_loop() -> None:
    """Which is by chance where the loop is over a set or a folder."""
    module = cell(FILLED)
    before = code_digests(module["f"])
    module |= {"number": 7, "width": 9}
    assert code_digests(module["f"]) == before


def test_digest_runs_no_import_that_the_program_has_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("own_fast", "own_slow"):
        (tmp_path / f"{name}.py").write_text(f"T = ['{name}']\n")
    text = "try:\n    from own_fast import T\nexcept ImportError:\n    from own_slow import T\n"
    digest = code_digests(cell(f"{text}def f(): return T\n")["f"])
    assert "own_slow" not in sys.modules
    importlib.import_module("own_slow")
    assert code_digests(cell(f"{text}def f(): return T\n")["f"]) == digest
    (tmp_path / "own_fast.py").write_text("T = ['faster']\n")
    assert code_digests(cell(f"{text}def f(): return T\n")["f"]) != digest
    (tmp_path / "own_star").mkdir()
    for name in ("__init__", "train"):
        (tmp_path / "own_star" / f"{name}.py").touch()
    code_digests(cell("from own_star import *\ntrain = []\ndef f(): return train\n")["f"])
    assert "own_star.train" not in sys.modules


def test_digest_beside_a_formula_of_many_terms() -> None:
    text = f"S = {' + '.join('1' * 1200)}\nT = [{' + '.join('a' * 500)}]\ndef f(): return 1\n"
    module = cell(f"a = 1\n{text}def g(): return T\n")
    assert code_digests(module["f"]).keys() == {"code"}
    assert code_digests(module["g"]).keys() == {"code", "not_covered"}


KEEPING = """
import enum

class Meta(type):
    made = []
    def __init__(cls, *of): Meta.made.append(cls)

class A(metaclass=Meta):
    pass

class Mode(enum.IntFlag):
    A, B = 1, 2

class Stage(NamedTuple):
    width: int = 1
    def wide(self): return self.width > 1

def f(): return A, Mode.A
"""


def test_digest_has_nothing_that_classes_keep_of_their_use() -> None:
    module = cell(f"from typing import NamedTuple\n{KEEPING}")
    before = code_digests(module["f"])
    exec("class B(A): pass", module)
    assert module["Mode"].A | 2 == 3
    copy.copy(object.__new__(module["A"]))
    assert "__slotnames__" in vars(module["A"])
    assert code_digests(module["f"]) == before


def test_digest_of_a_set_does_not_depend_on_addresses() -> None:
    def net() -> nn.Module:
        made = nn.Sequential(*(nn.LayerNorm(2) for _ in range(7)))
        made.frozen, made.weights = {*made}, {layer.weight for layer in made}
        return made

    nets = [net() for _ in range(4)]  # side by side, at other addresses
    assert len({str(model_digests(each)) for each in nets}) == 1


def test_code_of_what_a_list_holds_is_no_layout() -> None:
    nets = [nn.Flatten(), nn.Flatten()]
    for net, text in zip(nets, (KEEPING, KEEPING.replace("> 1", "> 2")), strict=True):
        net.stages = [cell(f"from typing import NamedTuple\n{text}")["Stage"]()]
    one, other = map(model_digests, nets)
    assert one["layout"] == other["layout"]
    assert one["code"] != other["code"]


def test_digest_of_a_class_in_a_function_has_its_globals(monkeypatch: pytest.MonkeyPatch) -> None:
    def made() -> Any:
        class Inner:
            source = SOURCE

        return Inner

    before = code_digests(made)
    monkeypatch.setitem(globals(), "__name__", "elsewhere")
    assert code_digests(made) == before
    monkeypatch.setitem(globals(), "SOURCE", "another")
    assert code_digests(made) != before


class Place:
    __slots__ = ("name", "unset")

    def __init__(self, name: str) -> None:
        self.name = name


def test_digest_of_installed_objects_by_what_they_have() -> None:
    """As they are copied: pandas shows a part of a long series, a transform only a place."""
    numbers = list(range(200))
    series = pd.Series(numbers), pd.Series([*numbers[:100], 7, *numbers[101:]])
    scaled = [StandardScaler().fit([[0.0], [end]]) for end in (1.0, 2.0)]
    chained = [functools.partialmethod(operator.add, shift) for shift in (1, 2)]
    held = [SimpleNamespace(x=torch.arange(5000) % end) for end in (7, 8)]
    arrays = [np.array([len, None]), np.array([None, len])], [np.arange(4)[::-1], np.arange(4)]
    placed = [Place("a"), Place("b")]
    for one, other in (series, scaled, chained, held, placed, *arrays):
        assert code_digests(copy.deepcopy(one)) == code_digests(one) != code_digests(other)


OF_VALUES = """
import functools

class Meta(type):
    def __call__(cls, item): return "Meta"

class Row(tuple):
    def first(self): return "Row"

class Rows(list):
    def first(self): return "Rows"

class Table(dict):
    def first(self): return "Table"

class Size(int):
    def first(self): return "Size"

class Field(NamedTuple):
    of: int = 1
    def first(self): return "Field"

class Own(property):
    def __get__(self, of, kind=None): return "Own"

class Part(functools.partial):
    def __call__(self): return "Part"

class Made(metaclass=Meta):
    @Own
    def got(self): return "got"

def inner(): return "inner"

row, rows = Row([1]), Rows([2])
row.itself, rows.depth = row, 3
values = [row, rows, Table(a=4), Size(5), Field(6), Part(inner)]
"""


def test_digest_has_the_classes_of_values() -> None:
    """Of a user's that derives from Python's: the class' code, what it has, and the value."""

    def found(old: str = "", new: str = "") -> dict[str, str]:
        assert old in OF_VALUES
        made = cell(OF_VALUES.replace(old, new), NamedTuple=NamedTuple)
        assert model_digests(Wide(made["values"][1]))["layout"] == layout
        return code_digests(made["values"], made["Made"])

    layout = model_digests(Wide(len))["layout"]
    before = found()
    assert found() == before
    edits = [(f'"{name}"', '"edited"') for name in ("Meta", "Row", "Rows", "Table", "Size")]
    edits += [(f'"{name}"', '"edited"') for name in ("Field", "Own", "Part", "got", "inner")]
    edits += [("[1]", "[7]"), ("[2]", "[7]"), ("row, 3", "row, 7"), ("a=4", "a=7")]
    edits += [("Size(5)", "Size(7)"), ("Field(6)", "Field(7)")]
    assert [edit for edit in edits if found(*edit) == before] == []


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

    before = code_digests(*things), layout()
    logging.getLogger("mine").setLevel(logging.DEBUG)
    for generator in generators[:2]:
        generator.random()
    torch.rand(1, generator=generators[2])
    shifted(np.zeros(2))
    threads.submit(len, []).result()
    assert (code_digests(*things), layout()) == before


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages", "mine"])
def test_packages_count_as_installed_wherever_they_are(folder: str) -> None:
    """Of a cluster's modules, or Debian's: nobody follows torch's own code."""
    namespace: dict[str, Any] = {}
    exec(compile("def f(): pass", f"/opt/{folder}/torch/x.py", "exec"), namespace)
    assert is_installed(namespace["f"]) == (folder != "mine")


def test_digest_of_tensors_by_all_they_are() -> None:
    ones = torch.ones(2, 3)
    given = [ones, ones.double(), ones.view(3, 2), ones + 1e-7, torch.ones(())]
    given += [of for one in (ones, 2 * ones) for of in (one.to_sparse(), one.to_sparse_csr())]
    given += [ones.to_sparse_csc(), ones.to_mkldnn(), ones.to("meta")]
    found = {tensors_digest([(name, tensor)]) for tensor in given for name in "ab"}
    assert len(found) == 2 * len(given)
    whole = torch.tensor([1 + 2j, 3 - 4j]).conj()  # a view, as is its imaginary part
    for one, other in ((ones, ones.T.contiguous().T), (whole.imag, whole.imag.clone())):
        assert tensors_digest([("", one)]) == tensors_digest([("", other)])
    model = nn.BatchNorm1d(2)
    before = model_digests(model)
    model.running_mean += 1
    after = model_digests(model)
    assert [part for part in after if after[part] != before[part]] == ["weights"]


HOOKS = [("forward", "lambda *x: None"), ("forward", "lambda *x: x[-1]"), None]
HOOKS += [(kind, "lambda *x: None") for kind in ("forward_pre", "full_backward")]


def hooked(hook: tuple[str, str] | None) -> nn.Module:
    """A network with a hook at its first layer; the other layer is in evaluation."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout().eval())
    if hook:
        kind, text = hook
        getattr(model[0], f"register_{kind}_hook")(cell(f"hook = {text}")["hook"])
    return model


class Wide(nn.Module):
    """Has something that is no tensor."""

    def __init__(self, own: Any) -> None:
        super().__init__()
        self.own = own


class Buffered(nn.Module):
    def __init__(self, *, persistent: bool) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(2), persistent=persistent)


class Scaled(nn.Linear):
    factor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * torch.tensor(self.factor)


class Beside(nn.Linear):
    """Has a plain attribute, whose name a parameter's begins with."""

    def __init__(self, scale: Any) -> None:
        super().__init__(2, 2)
        self.scale, self.scale_of_rows = scale, nn.Parameter(torch.ones(2))


class Showing(nn.Linear):
    """Shows an object as Python does, with its address."""

    def __init__(self, word: str) -> None:
        super().__init__(2, 2)
        self.held, self.word = object(), word

    def extra_repr(self) -> str:
        return f"{self.held}, {self.word}"


def around(item: Any) -> nn.Module:
    """A model with a list that contains itself."""
    itself = [item]
    itself.append(itself)
    return Wide(itself)


class Dotted(dict):
    """Answers to any name, also to ``__wrapped__``."""

    __getattr__ = dict.get


@pytest.mark.parametrize("own", [lambda k: Dotted(a=k), lambda k: {"a": k}])
def test_digest_has_an_inherited_attribute_anew(own: Any) -> None:
    base = type("Base", (nn.Module,), {"config": own(0)})
    one, other = (model_digests(type("Child", (base,), {"config": own(k)})()) for k in (1, 2))
    assert one != other


def traced(factor: float) -> nn.Module:
    model = Scaled(2, 2)
    model.factor = factor
    return torch.jit.trace(model, torch.ones(1, 2))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(
    ("make", "values"),
    [
        (hooked, HOOKS),
        (lambda frozen: nn.LSTM(2, 2).requires_grad_(not frozen), (True, False)),
        (lambda kept: Buffered(persistent=kept), (True, False)),
        (lambda dim: nn.utils.weight_norm(nn.Linear(2, 2), dim=dim), (0, 1)),
        (lambda kind: Wide(torch.fx.symbolic_trace(kind())), (nn.ReLU, nn.Tanh)),
        (traced, (1.0, 2.0)),
        (lambda days: Wide(datetime.timedelta(days)), (1, 2)),
        (Beside, (1, 2, torch.ones(2), torch.zeros(2))),
        (lambda dim: nn.utils.weight_norm(Scaled(2, 2), dim=dim), (0, 1)),
        (Showing, ("a", "b")),
        (around, (1, 2, len)),
    ],
)
def test_digest_tells_models_apart(make: Any, values: tuple[Any, ...]) -> None:
    """By what is no tensor; a model's use and a whole model's mode change nothing."""
    found = []
    for model in [make(value) for value in values for _ in range(2)]:
        parts = model_digests(model)
        found.append((parts["layout"], parts["code"]))
        model(torch.ones(1, 2)) if type(model) is nn.Sequential else model.eval()
        again = model_digests(model)
        assert (again["layout"], again["code"]) == found[-1]
    assert len({*found}) == len(values)


LOSS = """
def scaled(by):
    def around(function):
        @functools.wraps(function)
        def inner(*arguments):
            return by * function(*arguments)
        return inner
    return around

MEMO, COUNT, WIDTHS = {}, 0, [1, 2]

class Focal:
    kept = {}

    def __init__(self, gamma):
        self.gamma, self.calls, self.memo, self.widths = gamma, 0, {}, [1]

    @scaled(1)
    def __call__(self, outputs, targets):
        self.calls += 1
        self.memo[self.calls] = self.kept[self.calls] = outputs
        return self.value + self.gamma

    @functools.cached_property
    def value(self):
        return 1.0

def loss(outputs, targets, memo={}):
    global COUNT
    COUNT += 1
    MEMO[COUNT] = memo[COUNT] = outputs
    loss.calls = COUNT
    return loss.alpha * len(WIDTHS) * focal(outputs, targets)

loss.alpha = 1
focal = Focal(1)
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("loss.alpha = 1", "loss.alpha = 2"),
        ("@scaled(1)", "@scaled(2)"),
        ("return by *", "return by +"),
        ("[1, 2]", "[1, 3]"),
        ("self.widths = gamma, 0, {}, [1]", "self.widths = gamma, 0, {}, [2]"),
        ("focal = Focal(1)", "focal = Focal(2)"),
        ("return 1.0", "return 2.0"),
    ],
)
def test_digest_of_a_function_survives_its_use_and_not_an_edit(old: str, new: str) -> None:
    """What it counts and remembers, in a notebook as well, is no part of it."""
    found = cell(LOSS, functools=functools, torch=torch)
    before = code_digests(found["loss"], found["focal"])
    assert found["loss"](1.0, 1.0)
    assert found["COUNT"] == 1
    assert code_digests(found["loss"], found["focal"]) == before
    assert old in LOSS
    edited = cell(LOSS.replace(old, new), functools=functools, torch=torch)
    assert code_digests(edited["loss"], edited["focal"]) != before


def test_digest_has_no_variable_of_a_name_that_is_local_or_an_attribute() -> None:
    """Such as a script's clock ``t``, beside a model that calls a length ``t``."""
    text = """
n = 2

def halve(x): return x / n

class Net:
    def forward(self, x):
        b, t = x.shape
        def count(): nonlocal b; b += 1
        return halve(self.s(x)) + (lambda k: k)(t) + sum(i for i in range(t))
"""
    before = code_digests((module := cell(text))["Net"])
    module |= dict.fromkeys(("x", "b", "t", "s", "k", "i", "self"), 1.5)
    assert code_digests(module["Net"]) == before
    module["n"] = 3
    assert code_digests(module["Net"]) != before


READING = """
import json, pathlib
import numpy as np
import torch

FILE = pathlib.Path({path!r})
WEIGHTS = torch.tensor(json.loads(FILE.read_text()))
SCALE = np.array(json.loads(FILE.read_text()))
def _load(file): return json.loads(file.read_text())
NAMES = _load(FILE)
def readout(x): return [x]
RATES, WIDTHS, TABLE = [1, 2], list(range(3)), dict(a=1)
READ = readout(3)
MEAN, LAST, FILLED = torch.zeros(2), np.zeros(2), np.zeros(2)
TOTAL, BEGUN, NEXT, ONES, HALF, FLAT = torch.zeros(6, 2)

def weighted(x): return WEIGHTS.clone().mul_(x)
def counted(x): return WEIGHTS.float().mul_(x)
def scaled(x): return x * SCALE
def named(x): return NAMES[x], RATES, WIDTHS, TABLE, READ
def kept(x):
    MEAN.lerp_(x, 0.5)
    LAST.fill(1)
    torch.add(x, 1, out=TOTAL)
    BEGUN.data.copy_(x)
    NEXT.detach().mul_(0.5).add_(x)
    HALF.split(2)[0].copy_(x)
    FLAT.chunk(1)[0].view_as(x).mul_(x)
    torch.nn.init.ones_(ONES)
    np.copyto(FILLED, 3)
    return MEAN
"""


def test_digest_has_the_tensors_that_are_read_from_a_file(tmp_path: Path) -> None:
    """Not those that the code changes; of what no digest tells, such as lists, the name."""
    file = tmp_path / "weights.json"
    found = []
    for content in ("[1.0, 2.0]", "[1.0, 9.0]"):
        file.write_text(content)
        module = cell(READING.format(path=str(file)))
        names = ("weighted", "counted", "scaled", "named", "kept")
        found.append({name: code_digests(module[name]) for name in names})
    before, after = found
    assert [name for name in before if before[name] != after[name]] == [*names[:3]]
    assert before["named"]["not_covered"] == "NAMES"
    assert [*before["weighted"]] == [*before["scaled"]] == ["code"]
    assert module["kept"](torch.ones(2)).tolist() == [0.5, 0.5]
    assert code_digests(module["kept"]) == after["kept"]


def test_digest_says_what_it_does_not_cover() -> None:
    """Never fails on it: a generator's place, a variable whose assignment is nowhere."""
    model = Wide([torch.Generator(), threading.Lock()])
    assert model_digests(model)["not_covered"] == "torch._C.Generator"
    assert "not_covered" not in model_digests(nn.LSTM(2, 3))  # which refers weakly to its weights
    assert model_digests(Wide(weakref.ref(model)))["not_covered"] == "weakref.ReferenceType"
    function = cell("def f(x): return TABLE[x]", TABLE={})["f"]
    assert code_digests(function)["not_covered"] == "TABLE"
    typed = cell("from typing import Optional\ndef f(x): return Optional[x]")["f"]
    assert "not_covered" not in code_digests(typed)
    assert "not_covered" not in code_digests(digests)
