"""Client methods: SCAFFOLD against a plain loop; the same bits everywhere; a method of a user's."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file
from torch import nn

import fednnnn_plugin as fp
from fednnnn_plugin.cli import main
from fednnnn_plugin.client.method import ClientMethod
from fednnnn_plugin.data.federated import FederatedData, load_federated
from fednnnn_plugin.engine.followers import Follower
from fednnnn_plugin.models import create_model
from fednnnn_plugin.recipe import find_recipe, load_recipe
from fednnnn_plugin.recipe.data_spec import data_spec
from fednnnn_plugin.seeds import torch_generator
from fednnnn_plugin.server.rules import positive

FEDAVG, FEDNNNN = "digits_noniid_b_fedavg", "digits_noniid_ub_fednnnn"
QUICK: dict[str, Any] = {
    "client_num_per_round": 5,
    "comm_round": 3,
    "epochs": 1,
    "checkpoint_every": 1,
    "client_method": "scaffold",
    "device_args.using_gpu": False,
}
Content = Callable[[Path], tuple[object, ...]]


def settings(**more: Any) -> dict[str, Any]:
    return {k if "." in k else f"train_args.{k}": v for k, v in (QUICK | more).items()}


def start(folder: Path, recipe: str = FEDAVG, **more: Any) -> fp.Run:
    given = {key: more.pop(key) for key in ("model", "resume") if key in more}
    if isinstance(more.get("client_method"), type):
        given["client_method"] = more.pop("client_method")
    values = settings(**more)
    if "client_method" in given:
        del values["train_args.client_method"]
    return fp.run(recipe, output=folder, overrides=values, **given)


def vector(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def scaffold_loop(data: FederatedData, model: nn.Module, train: Any, rule: dict[str, float]) -> Any:
    """SCAFFOLD, option II, and the rule; return w, c, what the clients have, and N and E."""
    served = vector(model)
    c, of_clients, moved = torch.zeros_like(served), {}, torch.zeros_like(served)
    rate, decay, norms = train.learning_rate, train.weight_decay, []
    for number in range(1, train.comm_round + 1):
        draw = torch_generator(0, "cohort", number)
        cohort = torch.randperm(data.num_clients, generator=draw)[: train.client_num_per_round]
        updates, changes, sizes = [], [], []
        for k in cohort.tolist():
            own = copy.deepcopy(model)
            nn.utils.vector_to_parameters(served, own.parameters())
            c_k, steps = of_clients.get(k, torch.zeros_like(served)), 0
            images, labels = data.client_data(k)
            shuffle = torch_generator(0, "shuffle", number, k)
            for _ in range(train.epochs):
                order = torch.randperm(len(labels), generator=shuffle)
                for batch in order.split(train.batch_size):
                    loss = nn.functional.cross_entropy(own(images[batch].double()), labels[batch])
                    parts = torch.autograd.grad(loss, list(own.parameters()))
                    g = torch.cat([part.flatten() for part in parts]) + decay * vector(own)
                    after = vector(own) - rate * (g - c_k + c)
                    nn.utils.vector_to_parameters(after, own.parameters())
                    steps += 1
            new = c_k - c + (served - vector(own)) / (steps * rate)
            changes.append(new - c_k)
            of_clients[k] = new
            updates.append(vector(own) - served)
            sizes.append(len(labels) if train.client_weighting == "samples" else 1)
        alpha = torch.tensor(sizes, dtype=torch.float64) / sum(sizes)
        update = alpha @ torch.stack(updates)
        e = float(alpha @ torch.stack([each.norm() for each in updates]))
        norms.append((update.norm().item(), e))
        scale = rule["beta"] * e / update.norm() if "beta" in rule else 1.0
        moved = rule.get("gamma", 0.0) * moved + scale * update
        served = served + moved
        c = c + len(cohort) / data.num_clients * (alpha @ torch.stack(changes))
    return served, c, of_clients, norms


@pytest.mark.parametrize(
    ("recipe", "more"),
    [
        (FEDAVG, {"epochs": 2}),
        (FEDNNNN, {"weight_decay": 0.01, "client_weighting": "samples"}),
    ],
)
def test_scaffold_matches_a_plain_loop(recipe: str, more: dict[str, Any], tmp_path: Path) -> None:
    start(tmp_path / "run", recipe, precision="fp64", **more)
    overrides = [f"{k}={json.dumps(v)}" for k, v in settings(precision="fp64", **more).items()]
    loaded = load_recipe(find_recipe(recipe), overrides)
    data = load_federated(data_spec(loaded))
    model = create_model("nnnn_digits", 0).double()
    served, c, of_clients, norms = scaffold_loop(
        data, model, loaded.train_args, loaded.rule_settings
    )
    newest = load_file(max((tmp_path / "run/checkpoint").iterdir()))
    found = torch.cat([newest[name].flatten() for name, _ in model.named_parameters()])
    torch.testing.assert_close(found, served, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(newest["..sent.c"], c, rtol=1e-9, atol=1e-12)
    records = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").open()]
    for record, (n, e) in zip(records, norms, strict=True):
        assert record["mean_update_norm"] == pytest.approx(n, rel=1e-9)
        assert record["mean_client_norm"] == pytest.approx(e, rel=1e-9)
    places = {client: number for client, number, _ in newest["..kept"].tolist()}
    assert places.keys() == of_clients.keys()  # those that were drawn, no others
    for client, number in places.items():
        name = f"client-{client:06d}-round-{number:06d}.safetensors"
        kept = load_file(tmp_path / "run/clients" / name)
        torch.testing.assert_close(kept["c_k"], of_clients[client], rtol=1e-9, atol=1e-12)


def test_scaffold_in_groups_is_scaffold_alone(tmp_path: Path) -> None:
    start(tmp_path / "alone", FEDNNNN, precision="fp64", comm_round=2)
    start(tmp_path / "groups", FEDNNNN, precision="fp64", comm_round=2, client_batching=3)
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("alone", "groups"))
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=1e-9, atol=1e-12)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed, on one worker."""
    folder = tmp_path_factory.mktemp("scaffold") / "run"
    start(folder, **{"device_args.worker_num": 1})
    return folder


def test_scaffold_on_workers_and_resumed_changes_no_bit(
    whole: Path, tmp_path: Path, content: Content
) -> None:
    two = {"device_args.worker_num": 2}
    start(tmp_path / "parts", comm_round=2, **two)
    start(tmp_path / "parts", resume=True, **two)
    assert content(tmp_path / "parts") == content(whole)
    files = [sorted(p.name for p in (x / "clients").iterdir()) for x in (whole, tmp_path / "parts")]
    assert files[0] == files[1]


class Stopping(Follower):
    """Ends the process's run within a round, when some of its clients have trained."""

    def client_done(self, number: int, done: int, of: int) -> None:
        if (number, done) == (3, 2):
            raise InterruptedError


def test_scaffold_round_cut_short_leaves_no_trace(
    whole: Path, tmp_path: Path, content: Content
) -> None:
    with pytest.raises(InterruptedError):
        fp.run(FEDAVG, output=tmp_path / "cut", overrides=settings(), followers=[Stopping()])
    start(tmp_path / "cut", resume=True)
    assert content(tmp_path / "cut") == content(whole)


@pytest.mark.parametrize("damage", ["removed", "changed"])
def test_client_file_damaged_falls_back_a_checkpoint(
    damage: str, whole: Path, tmp_path: Path, content: Content, caplog: pytest.LogCaptureFixture
) -> None:
    start(tmp_path / "hurt", comm_round=2)
    newest = next((tmp_path / "hurt/clients").glob("*round-000002*"))
    if damage == "removed":
        newest.unlink()
    else:
        newest.write_bytes(newest.read_bytes()[:-1] + b"\x01")
    start(tmp_path / "hurt", resume=True)
    assert "trying the one before" in caplog.text
    assert content(tmp_path / "hurt") == content(whole)


def test_client_files_that_are_needed_stay(tmp_path: Path) -> None:
    start(tmp_path / "run", comm_round=6, checkpoint_every=3)
    rounds: dict[int, list[int]] = {}
    for path in (tmp_path / "run/clients").iterdir():
        _, client, _, number = path.stem.split("-")
        rounds.setdefault(int(client), []).append(int(number))
    for numbers in rounds.values():  # those after round 3 and after round 6
        assert len(numbers) <= 2
        assert sum(number <= 3 for number in numbers) <= 1


def test_overwriting_removes_the_clients_files(tmp_path: Path) -> None:
    start(tmp_path / "run", comm_round=1)
    plain = {key: x for key, x in settings(comm_round=1).items() if "client_method" not in key}
    fp.run(FEDAVG, output=tmp_path / "run", overrides=plain, overwrite=True)
    assert not (tmp_path / "run/clients").exists()


def test_fedprox_is_one_method_under_two_names(tmp_path: Path, content: Content) -> None:
    start(tmp_path / "a", client_method="fedprox", prox_mu=0.3, comm_round=2)
    one = {
        key: x
        for key, x in settings(prox_mu=0.3, comm_round=2).items()
        if "client_method" not in key
    }
    one["train_args.federated_optimizer"] = "PaperFedProx"
    fp.run(FEDAVG, output=tmp_path / "b", overrides=one)
    assert content(tmp_path / "a") == content(tmp_path / "b")


class Drag(ClientMethod):
    """Each client is drawn back to where it ended before, and by what all of them did."""

    keys: ClassVar = {"drag_mu": positive(default=0.5)}
    sends, keeps, returns = ("mean",), ("last", "rounds"), ("update",)

    def __init__(self, drag_mu: float) -> None:
        self.prox_mu = drag_mu

    def correction(self, sent: Any, kept: Any) -> Any:
        noise = torch.rand(()) / 100  # a user's code may draw
        return noise - (sent["mean"] + kept["last"]) / (1 + kept["rounds"])

    def finish_client(self, local: Any) -> Any:
        kept = {"last": local.update, "rounds": local.kept["rounds"] + 1}
        return kept, {"update": local.update}

    def finish_round(self, sent: Any, returned: Any, share: float) -> Any:
        return {"mean": sent["mean"] / 2 + share * returned["update"] + torch.rand(()) / 100}


def test_users_client_method_is_carried_alike(tmp_path: Path, content: Content) -> None:
    start(tmp_path / "whole", client_method=Drag, drag_mu=0.25, **{"device_args.worker_num": 1})
    two = {"drag_mu": 0.25, "device_args.worker_num": 2}
    start(tmp_path / "parts", client_method=Drag, comm_round=2, **two)
    start(tmp_path / "parts", client_method=Drag, resume=True, **two)
    assert content(tmp_path / "parts") == content(tmp_path / "whole")
    with pytest.raises(fp.UserError, match="drag_mu"):
        start(tmp_path / "whole", client_method=Drag, drag_mu=0.5, resume=True)
    changed = type("Drag", (Drag,), {"correction": lambda self, sent, kept: -kept["last"]})
    with pytest.raises(fp.UserError, match="client_method"):
        start(tmp_path / "whole", client_method=changed, drag_mu=0.25, resume=True)


FILE = """
from fednnnn_plugin import ClientMethod
from fednnnn_plugin.server.rules import positive

class Lean(ClientMethod):
    keys = {"lean": positive()}
    keeps = ("last",)

    def __init__(self, lean):
        self.lean = lean

    def correction(self, sent, kept):
        return -self.lean * kept["last"]

    def finish_client(self, local):
        return {"last": local.update}, {}

class Wrong(ClientMethod):
    keeps = ("last",)

    def finish_client(self, local):
        return {"last": local.update[0]}, {}

class Raises(ClientMethod):
    returns = ("x",)

    def finish_client(self, local):
        raise ValueError("no")
"""


def test_client_method_of_a_file(own_code: Path) -> None:
    Path("mine.py").write_text(FILE)
    few = {"comm_round": 2, "epochs": 1, "client_num_per_round": 2, "using_gpu": False}
    short = [f"--set={key}={json.dumps(value)}" for key, value in few.items()]

    def fednnnn(method: str, output: str, *more: str) -> Result:
        named = f"--set=train_args.client_method=mine:{method}"
        words = ("run", FEDAVG, *short, named, f"--output={output}", *more)
        return CliRunner().invoke(main, words)

    lean = ("Lean", "run", "--set=train_args.lean=0.5")
    assert fednnnn(*lean, "--allow-code").exit_code == 0
    assert "client_method: mine:Lean" in Path("run/recipe.yaml").read_text()
    longer = (*lean, "--set=train_args.comm_round=3", "--resume")
    assert fednnnn(*longer).exit_code == 2
    assert fednnnn(*longer, "--allow-code").exit_code == 0
    for method, key in (("Wrong", "last"), ("Raises", "raised"), ("None", "None")):
        refused = fednnnn(method, "other", "--allow-code")
        assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
        assert "train_args.client_method" in refused.stderr
        assert key in refused.stderr
    assert not Path("other").exists()


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"client_method": "scafold"}, "client_method"),
        ({"client_optimizer": "adam"}, "client_optimizer"),
        ({"client_optimizer_args": {"momentum": 0.9}}, "client_optimizer_args"),
        ({"max_grad_norm": 1.0}, "max_grad_norm"),
        ({"prox_mu": 0.1}, "prox_mu"),
        ({"client_method": "fedprox"}, "prox_mu"),
        ({"federated_optimizer": "PaperFedProx", "prox_mu": 0.1}, "client_method"),
    ],
)
def test_client_method_that_does_not_fit_is_refused(
    more: dict[str, Any], key: str, tmp_path: Path
) -> None:
    with pytest.raises(fp.UserError) as caught:
        start(tmp_path / "run", **{"client_optimizer": "sgd"} | more)
    lines = str(caught.value).splitlines()
    assert any(f"train_args.{key}:" in line for line in lines), lines
    assert not (tmp_path / "run").exists()


def test_recipes_readme_has_a_method_that_runs(tmp_path: Path, content: Content) -> None:
    page = (Path(__file__).parents[2] / "recipes/README.md").read_text()
    code = page.split("# my_methods.py\n")[1].split("```")[0]
    names: dict[str, Any] = {"__name__": "my_methods"}
    exec(code, names)
    start(tmp_path / "own", client_method=names["Inertia"], comm_round=2)
    start(tmp_path / "plain", client_method=None, comm_round=2)
    assert content(tmp_path / "own") != content(tmp_path / "plain")
