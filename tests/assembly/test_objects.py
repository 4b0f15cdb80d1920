"""``fp.run`` with a model, data and a rule as objects, and what keeps runs of others apart."""

import copy
import functools
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from sklearn.metrics import r2_score
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

import fednnnn_plugin as fp
from fednnnn_plugin.cli import main
from fednnnn_plugin.server.rules import RULES

from ..tiny import (
    CELL,
    DATA,
    HOSPITALS,
    NET,
    OWN,
    PARTS,
    TEST,
    Content,
    Doing,
    Start,
    X,
    Y,
    cell,
    follower,
    quick_run,
    read_records,
)

RECIPE, FEDAVG = "digits_noniid_b_fednnnn", {"recipe": "digits_noniid_b_fedavg"}


@pytest.fixture
def start(start: Start) -> Start:
    """Run with our model function and data unless told otherwise."""
    usual = {"model": NET, "data": DATA, "client_num_in_total": 4, "client_num_per_round": 1}
    return lambda output="run", **given: start(output, **usual | given)


def model_bytes(folder: str) -> bytes:
    return Path(folder, "model.safetensors").read_bytes()


def test_model_object_is_the_start(start: Start) -> None:
    model = NET(4, p=0.0)
    start(model=model, learning_rate=1e-30)
    found = load_file("run/model.safetensors")
    torch.testing.assert_close(found, dict(model.state_dict()), rtol=0, atol=0)
    # No command goes on with it.
    for recipe in ("run/recipe.yaml", RECIPE):
        ended = CliRunner().invoke(main, ["run", recipe, "--output=run", "--resume"])
        assert (ended.exit_code, ended.stderr.count("\n")) == (2, 1)
        assert "data_args.dataset, model_args.model: " in ended.stderr


class Stepping(torch.optim.SGD):
    """Draws in each step."""

    def step(self, closure: Any = None) -> Any:
        torch.rand(1)
        return super().step(closure)


class Mask(fp.ClientMethod):
    """Draws when it is made."""

    def __init__(self) -> None:
        self._mask = torch.rand(())

    def correction(self, sent: Any, kept: Any) -> torch.Tensor:
        return self._mask * torch.ones(1, 92)  # for each parameter


class Stateful(nn.Linear):
    """Has a state that is no tensor, and gradients that are sparse."""

    def __init__(self) -> None:
        super().__init__(6, 4)
        self.table = nn.Embedding(4, 4, sparse=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + self.table((x[:, 0] > 0).long())

    def get_extra_state(self) -> dict[str, str]:
        return {"version": "1"}

    def set_extra_state(self, state: Any) -> None:
        assert state == {"version": "1"}


@pytest.mark.slow
def test_sparse_gradients_are_those_of_dense_ones(start: Start) -> None:
    """Of a method that asks for the gradient."""
    sam = {"client_method": "fedsam", "sam_rho": 0.05, "comm_round": 2, "worker_num": 1}
    models = [Stateful() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    models[1].table.sparse = False
    for name, model in zip(("sparse", "dense"), models, strict=True):
        start(name, model=model, **sam)
    one, other = (load_file(f"{name}/model.safetensors") for name in ("sparse", "dense"))
    torch.testing.assert_close(one, other)


@pytest.mark.slow
def test_objects_that_draw_repeat_their_bits(start: Start) -> None:
    """And leave the caller's generators alone."""
    given = {"client_optimizer": Stepping, "model": Stateful()}
    for name, objects in (("optimizer", given), ("method", {"client_method": Mask, **FEDAVG})):
        before = torch.get_rng_state()
        start(f"first-{name}", **objects)
        assert torch.equal(torch.get_rng_state(), before)
        torch.rand(1)
        start(f"second-{name}", **objects)
        assert model_bytes(f"first-{name}") == model_bytes(f"second-{name}")
    found = fp.load_model("first-optimizer", Stateful()).table.weight
    assert torch.equal(found, load_file("first-optimizer/model.safetensors")["table.weight"])


def test_model_in_plain_pytorch_normalises_as_the_run_did(own_code: Path) -> None:
    """By the lines of the page, of images with values from 0 to 255."""
    page = (Path(__file__).parents[2] / "recipes/README.md").read_text()
    block = page.partition("### The model in plain PyTorch")[2].split("```")[1]
    quick_run("runs/mine", comm_round=1)
    loaded, images = (
        fp.load_model("runs/mine"),
        torch.arange(64, dtype=torch.uint8).view(1, 1, 8, 8),
    )
    names: dict[str, Any] = {"images": images, "net": loaded.model}
    exec(block.removeprefix("python"), names)
    torch.testing.assert_close(names["logits"], loaded(images))


def test_model_of_an_edited_class_is_loaded_with_a_warning(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """Where it has the same tensors; others are refused."""
    start(comm_round=1)
    edited = cell("torch.relu", "torch.tanh")["Net"]
    assert fp.load_model("run", NET) is not None
    assert not caplog.records
    loaded = fp.load_model("run", edited)
    assert torch.equal(loaded.fc1.weight, load_file("run/model.safetensors")["fc1.weight"])
    assert "its code is not that of the run in run" in caplog.text
    with pytest.raises(fp.UserError, match="not the model of the run"):
        fp.load_model("run", cell("width=8", "width=9")["Net"])


def test_direction_of_a_metric_is_known_of_a_run_that_ended_early(start: Start) -> None:
    def stop(*_: int) -> None:
        raise InterruptedError

    given = {"data": CELL["numbers"], "model": CELL["net"], "loss": "mse"}
    with pytest.raises(InterruptedError):
        start(metrics=[CELL["worst"]], followers=[follower(round_done=stop)], **given)
    runs = fp.read_runs("run")
    assert (*runs["lower_is_better"], *runs["finished"]) == (True, False)


class Counting(nn.Module):
    """A loss, or a metric, that is larger with each call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return nn.functional.cross_entropy(outputs, targets) * self.calls


def test_what_a_loss_and_a_metric_keep_ends_with_a_client_and_a_test(
    start: Start, content: Content
) -> None:
    """So nothing depends on who else trained there, and a resumed run finds the same objects."""
    loss, metric = Counting(), Counting()
    given = {"loss": loss, "metrics": [metric], "model": NET(4, p=0.0), "client_num_per_round": 4}
    for workers in (1, 2):
        start(f"of {workers}", worker_num=workers, **given)
    assert content(Path("of 1")) == content(Path("of 2"))
    assert loss.calls == metric.calls == 0
    start("of 1", resume=True, comm_round=3, **given)
    for record in read_records(Path("of 1")):
        assert record["test_metrics"]["Counting"] == pytest.approx(record["test_loss"])


class Merging(nn.Linear):
    """A frozen layer that adds a trained part to its weight for a test, as LoRA does."""

    def __init__(self) -> None:
        super().__init__(6, 4)
        self.part, self.merged = nn.Parameter(torch.ones(4, 6)), False
        self.weight.requires_grad_(requires_grad=False)

    def train(self, mode: bool = True) -> "Merging":
        if mode == self.merged:
            self.weight.data += -self.part.data if mode else self.part.data
            self.merged = not mode
        return super().train(mode)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + (0 if self.merged else x @ self.part.T)


class Adapted(nn.Module):
    """Frozen integers, with what trains beside them; ``train()`` returns nothing."""

    def __init__(self) -> None:
        super().__init__()
        whole = torch.arange(24, dtype=torch.int8).view(4, 6)
        self.whole = nn.Parameter(whole, requires_grad=False)
        self.part = nn.Linear(6, 4)

    def train(self, mode: bool = True) -> None:  # type: ignore[override]
        super().train(mode)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x) + x @ self.whole.T.to(x) / 100


def test_what_a_model_keeps_ends_with_a_batch_of_a_test(start: Start) -> None:
    """Whichever worker tests the batches before it."""
    for kept in (slower, weaker):
        losses, model = [], nn.Sequential(nn.Linear(6, 4), Doing(kept))
        model[1].register_parameter("scale", nn.Parameter(torch.ones(()), requires_grad=False))
        for workers in (1, 2):
            given = {"model": copy.deepcopy(model), "data": (X, Y, *MANY), "worker_num": workers}
            folder = start(f"{kept.__name__}-{workers}", **given).folder
            losses.append([each["test_loss"] for each in read_records(folder)])
        assert losses[0] == losses[1]


def slower(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    layer.passes = getattr(layer, "passes", 0) + 1
    return x / layer.passes


def weaker(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    if not layer.training:
        layer.scale.mul_(0.5)
    return x * layer.scale


MANY = [each.repeat(30, *[1] * (each.ndim - 1)) for each in TEST]  # several batches


def test_integers_may_be_the_first_parameter_and_train_may_return_nothing(start: Start) -> None:
    """Inputs are not rounded in a test; of a model that is loaded the loss is the recorded one."""
    folder, (x, y) = start(model=Adapted()).folder, TEST
    loss = nn.functional.cross_entropy(fp.load_model(folder, Adapted())(x), y)
    assert read_records(folder)[-1]["test_loss"] == pytest.approx(loss.item(), rel=1e-5)


def test_state_that_follows_the_mode_is_that_of_training(start: Start) -> None:
    model = Merging()
    frozen = model.weight.detach().clone()
    start(model=model.eval())
    found = load_file("run/model.safetensors")
    torch.testing.assert_close(found["weight"], frozen)
    assert not torch.equal(found["part"], torch.ones(4, 6))
    loaded = fp.load_model("run", model)  # is in evaluation mode
    torch.testing.assert_close(loaded.weight, frozen + found["part"])


@pytest.mark.slow  # torch.compile takes seconds
def test_model_object_that_cannot_train_is_refused(start: Start) -> None:
    """After its digests are made."""
    for model in (nn.Linear(6, 4, device="meta"), torch.compile(NET(4))):
        with pytest.raises(fp.UserError, match=r"^model_args\.model: .*(meta|torch.compile)"):
            start(model=model)
    assert not Path("run").exists()


def test_model_object_may_have_sparse_tensors(start: Start) -> None:
    """As a graph's adjacency is kept."""
    passing = Doing(lambda layer, x: torch.sparse.mm(layer.seen, (layer.adjacency @ x.T)).T)
    model = nn.Sequential(nn.Linear(6, 6), passing, nn.Linear(6, 4))
    passing.adjacency = torch.eye(6).to_sparse()
    passing.register_buffer("seen", torch.eye(6).to_sparse(), persistent=False)
    start(model=model, comm_round=1)
    passing.adjacency = 2 * passing.adjacency
    with pytest.raises(fp.UserError, match=r"^resume=True: model \(layout\): "):
        start(model=model, comm_round=2, resume=True)


@pytest.mark.slow
def test_split_of_ones_own_in_each_form(start: Start) -> None:
    positions = HOSPITALS()[4]
    forms = {
        "positions": (*DATA, [*positions]),
        "lists": (X.numpy(), Y.numpy(), *TEST, [part.tolist() for part in positions]),
        "pairs": (PARTS, TEST),
        "named": (dict(enumerate(PARTS)), tuple(TEST)),
        "datasets": ([TensorDataset(*part) for part in PARTS], TensorDataset(*TEST)),
        "function": HOSPITALS,
    }
    for name, data in forms.items():
        start(name, data=data, comm_round=1)
    assert len({model_bytes(name) for name in forms}) == 1
    assert fp.read_runs(*forms)["split_fingerprint"].nunique() == 1


def own_rule(factor: float) -> type[torch.optim.Optimizer]:
    """A rule defined in a cell: FedAvg's step, times a factor."""

    @fp.rule()
    class Mine(torch.optim.SGD):
        def __init__(self, params: Any) -> None:
            super().__init__(params, lr=factor)

    return Mine


@pytest.mark.slow
def test_rule_and_loaders_as_objects_are_resumed(start: Start) -> None:
    whole = TensorDataset(PARTS[0][0], PARTS[0][1].int())
    clients = [
        DataLoader(whole, 7, shuffle=True, generator=torch.Generator()),
        Subset(TensorDataset(X, Y), range(30, 80)),
        *PARTS[2:],
    ]
    given = {"data": (clients, DataLoader(TensorDataset(*TEST), batch_size=16)), **FEDAVG}
    start("fedavg", **given)
    start("function", **given | {"data": lambda: given["data"]})
    assert model_bytes("function") == model_bytes("fedavg")
    start("mine", rule=own_rule(1.0), comm_round=1, **given)
    start("mine", rule=own_rule(1.0), resume=True, **given)
    assert model_bytes("mine") == model_bytes("fedavg")
    assert not any(name.startswith("<object>") for name in RULES)  # known as long as it ran
    assert fp.read_runs("mine")["method"].unique() == ["Mine"]
    loaded = fp.load_model("mine", NET).state_dict()
    torch.testing.assert_close(loaded, load_file("fedavg/model.safetensors"), rtol=0, atol=0)
    with pytest.raises(fp.UserError, match=r"^resume=True: rule \(code\)"):
        start("mine", rule=own_rule(2.0), resume=True, **given)
    clients[1] = Subset(TensorDataset(X, Y), range(31, 81))
    with pytest.raises(fp.UserError, match=r"^resume=True: data \(tensors\)"):
        start("mine", rule=own_rule(1.0), comm_round=3, resume=True, **given)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "changes"),
    [
        (
            {},
            {
                "data (tensors)": {"data": (X, Y.flip(0), *TEST)},
                "model (code)": {"model": cell("torch.relu", "torch.tanh")["Net"]},
                "model (code), model (layout)": {"model": cell("p=0.5", "p=0.1")["Net"]},
            },
        ),
        ({"data": (PARTS, TEST)}, {"data (tensors), split": {"data": (PARTS[::-1], TEST)}}),
        ({"model": NET(4)}, {"model (weights)": {"model": NET(4)}}),
    ],
)
def test_resume_refuses_what_has_changed(start: Start, before: Any, changes: Any) -> None:
    """Where the run has done its rounds, too: its result would be taken for another's.

    A run without a fingerprint goes on: it is of a version that had none.
    """
    start(**before, comm_round=1)
    kept = model_bytes("run")
    for changed, now in changes.items():
        with pytest.raises(fp.UserError) as refused:
            start(**now, comm_round=1, resume=True)
        assert str(refused.value).startswith(f"resume=True: {changed}")
    assert model_bytes("run") == kept
    Path("run/fingerprint.json").unlink()
    start(**now, comm_round=2, resume=True)
    assert Path("run/fingerprint.json").exists()


@pytest.mark.slow
def test_arguments_of_a_function_of_datasets_are_the_runs(start: Start) -> None:
    named = {"data": "own:datasets", "data_args.shift": 0.5, "allow_code": True}
    start("run", **named, comm_round=1)
    assert "shift: 0.5" in Path("run/recipe.yaml").read_text()
    with pytest.raises(fp.UserError, match=r"data_args\.shift"):
        start("run", **named | {"data_args.shift": 0.25}, resume=True)


def test_validation_part_leaves_each_client_something(start: Start) -> None:
    split = [[0], [1], [2], range(3, 140)]
    start(data=(*DATA, split), validation_fraction=0.9, client_num_per_round=4, comm_round=1)
    assert fp.read_runs("run")["clients"].unique() == [4]


@pytest.mark.slow
def test_objects_give_the_recipes_bytes(start: Start, content: Content) -> None:
    """In the place of all names; the recipe's with a stop. Metrics are of the whole test."""
    names: dict[str, Any] = {"data": "own:numbers", "model": "own:Net", "loss": "own:huber"}
    names |= {"client_method": "own:Drag", "client_sampling": "own:by_turns"}
    objects: dict[str, Any] = {key: CELL[name.removeprefix("own:")] for key, name in names.items()}
    names |= {"client_optimizer": "RMSprop", "metrics": ["r2", "own:worst"]}
    objects["client_optimizer"] = functools.partial(torch.optim.RMSprop, alpha=0.99)
    objects["metrics"] = ["r2", CELL["worst"]]
    settings = {"data_args.shift": 0.5, "model_args.width": 4, "drag_mu": 0.25, **FEDAVG}
    names, objects = names | settings | {"allow_code": True}, objects | settings
    summary = start("objects", **objects).summary
    start("named", worker_num=1, **names | {"comm_round": 1})
    start("named", worker_num=2, resume=True, **names)
    assert content(Path("named")) == content(Path("objects"))
    assert "client_method: own:Drag" in Path("named/recipe.yaml").read_text()

    model, (_, _, x, y, _) = NET(1, width=4).eval(), CELL["numbers"](shift=0.5)
    model.load_state_dict(load_file("objects/model.safetensors"))
    outputs = model(x).detach()
    metrics = read_records(Path("objects"))[-1]["test_metrics"]
    assert metrics["r2"] == pytest.approx(r2_score(y, outputs), rel=1e-4)
    assert metrics["worst"] == pytest.approx(float(CELL["worst"](outputs, y)))
    assert (summary.metric, summary.final_metric) == ("r2", metrics["r2"])

    by_turns = cell("first + number", "first - number")["by_turns"]
    for key, other, said in (
        ("client_sampling", by_turns, r"sampler \(code\)"),
        ("loss", cell("smooth_l1_loss", "l1_loss")["huber"], r"loss \(code\)"),
        ("client_method", cell("noise -", "-")["Drag"], r"client_method \(code\)"),
        ("drag_mu", 0.5, ".*drag_mu"),
    ):
        with pytest.raises(fp.UserError, match=f"^resume=True: {said}"):
            start("objects", resume=True, **objects | {key: other})
    Path("own.py").write_text(OWN.replace("torch.relu", "torch.tanh"))
    sys.modules.pop("own")
    with pytest.raises(fp.UserError, match=r"^resume=True: model \(code\): "):
        start("named", worker_num=2, resume=True, **names)


BEGIN = """
import os, signal
import fednnnn_plugin as fp

def start(output, **more):
    settings = {"client_num_in_total": 4, "client_num_per_round": 4, "comm_round": 3, "epochs": 1}
    fp.run("digits_noniid_b_fednnnn", model=Net, data=hospitals, output=output,
           overrides={**settings, "using_gpu": False}, **more)
"""
INTERRUPTED = """
class Stop(fp.Follower):
    def client_done(self, number, done, of):
        if (number, done) == (2, 2):
            os.kill(os.getpid(), signal.SIGINT)  # what the notebook's button sends

start("stopped", followers=[Stop()])
"""
RESUMED = 'start("whole")\nstart("stopped", resume=True)'
EDITED = OWN.replace("torch.relu", "torch.tanh") + 'start("stopped", resume=True)'


@pytest.mark.slow
def test_objects_in_a_notebook(tmp_path: Path) -> None:
    """An interrupt, a resume, an edit."""
    import nbformat  # takes a second, as the client does
    from nbclient import NotebookClient

    codes = (OWN + BEGIN, INTERRUPTED, RESUMED, EDITED)
    cells = [nbformat.v4.new_code_cell(code) for code in codes]
    for ending in (cells[1], cells[3]):
        ending.metadata["tags"] = ["raises-exception"]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}}).execute()
    _, interrupted, resumed, refused = (cell.outputs for cell in cells)
    # A bar of the notebook's own, and none of a terminal's.
    assert any("application/vnd.jupyter.widget-view+json" in o.get("data", ()) for o in resumed)
    assert not any(out.get("name") == "stdout" and "|" in out.text for out in resumed)
    assert interrupted[-1].ename == "KeyboardInterrupt"
    assert "resume=True" in interrupted[-1].evalue
    assert model_bytes(tmp_path / "whole") == model_bytes(tmp_path / "stopped")
    assert refused[-1].ename == "UserError"
    assert refused[-1].evalue.startswith("resume=True: model (code): ")


def test_best_of_a_metric_follows_its_direction(start: Start) -> None:
    given = {"data": CELL["numbers"], "model": CELL["net"], "loss": "mse"}
    summary = start(
        "run", metrics=[CELL["worst"]], comm_round=4, client_num_per_round=2, **given, **FEDAVG
    ).summary
    values = [record["test_metrics"]["worst"] for record in read_records(Path("run"))]
    best = min(values)
    assert (summary.best_metric, summary.best_metric_round) == (best, 1 + values.index(best))
    assert (summary.final_metric, summary.higher_is_better) == (values[-1], False)
