"""Client methods: the same bits however they run; those of users.

Against equations: ``test_against_plain_loop.py``; what does not fit: ``test_refusals.py``.
"""

import re
import shutil
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random, SystemRandom
from typing import Any, ClassVar

import pytest
import torch
from numpy.random import RandomState, default_rng
from safetensors.torch import load_file
from torch import Tensor, nn

import fednnnn_plugin as fp
from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.client.methods import METHODS, name_client_method
from fednnnn_plugin.processes.ranks import Ranks
from fednnnn_plugin.rounds.client_vectors import ClientVectors, MethodState
from fednnnn_plugin.rounds.method_calls import MethodCalls
from fednnnn_plugin.rounds.method_probe import why_not_in_groups
from fednnnn_plugin.run_folder.client_files import ClientFiles
from fednnnn_plugin.server.layout import ModelState
from fednnnn_plugin.server.rules import positive

from ..tiny import CELL, NET, TEST, Content, Start, X, Y, follower

FEDAVG = "digits_noniid_b_fedavg"


@pytest.mark.slow
def test_method_goes_on_with_the_same_bits(start: Start, content: Content) -> None:
    """One that draws, on any number of workers, after an end within a round.

    Ours: ``test_mpi_processes.py``; lost and damaged files: ``trust/``.
    """

    def stop(number: int, done: int, _: int) -> None:
        if (number, done) == (3, 2):
            raise InterruptedError

    drag = {"client_method": CELL["Drag"], "client_num_per_round": 5, "comm_round": 3}
    whole = start("whole", FEDAVG, worker_num=1, **drag).folder
    with pytest.raises(InterruptedError):
        start("within", FEDAVG, followers=[follower(client_done=stop)], **drag)
    folder = start("within", FEDAVG, resume=True, worker_num=2, **drag).folder
    assert content(folder) == content(whole)
    names = [{path.name for path in (of / "clients").iterdir()} for of in (whole, folder)]
    assert names[0] == names[1]
    # Of what two checkpoints need, the older one has a file a client; another method needs none.
    older = Counter(name[:13] for name in names[0] if "round-000003" not in name)
    assert set(older.values()) == {1}
    start("whole", FEDAVG, comm_round=1, overwrite=True)
    assert not (whole / "clients").exists()


def test_what_an_interrupted_round_left_is_not_kept(start: Start) -> None:
    """Client 0 ends in round 3, which is interrupted, and fails when the round is repeated."""
    data, failing = [(X[Y.eq(k)], Y[Y.eq(k)]) for k in range(3)], Path("failing")
    kept, left = Path("run/clients/client-000000-round-000003.safetensors"), list[bytes]()

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        if failing.exists() and not targets.any():  # all are of class 0
            raise OSError("not mounted")
        return nn.functional.cross_entropy(outputs, targets)

    def sampler(number: int, *_: object) -> list[int]:
        return [1, 2] if number == 4 else [0, 1]

    def stop(number: int, done: int, _: int) -> None:
        if (number, done) == (3, 1):
            left.append(kept.read_bytes())
            raise InterruptedError

    heal = follower(
        begin=lambda *_: failing.touch(), round_done=lambda _: failing.unlink(missing_ok=True)
    )
    given = {"data": (data, TEST), "model": NET, "loss": loss, "client_sampling": sampler}
    given |= {"client_method": "scaffold", "batch_size": -1, "epochs": 1, "worker_num": 1}
    given |= {"client_num_in_total": 3, "client_num_per_round": 2, "max_client_failures": 1}
    given |= {"checkpoint_every": 1, "comm_round": 6}
    with pytest.raises(InterruptedError):
        start("run", FEDAVG, followers=[follower(client_done=stop)], **given)
    assert not kept.exists()
    kept.write_bytes(*left)  # as a kill leaves it
    start("run", FEDAVG, followers=[heal], resume=True, **given)
    assert fp.read_runs("run")["rejected"].tolist() == [0, 0, 1, 0, 0, 0]


def test_lost_vectors_are_no_failure_of_the_client(start: Start) -> None:
    """It is not left out, though clients may fail: the run ends."""
    lose = follower(round_done=lambda _: shutil.rmtree("run/clients"))
    given = {"client_method": "scaffold", "max_client_failures": 5, "client_num_per_round": 20}
    with pytest.raises(fp.RunError, match=r"run/clients/client-0.*: No such file"):
        start("run", FEDAVG, followers=[lose], **given)
    # A variate for each of 6,058 parameters, of 4 bytes.
    assert "each client that has trained keeps 0.0242 MB" in Path("run/fedml.log").read_text()


class Kept(fp.ClientMethod):
    """Keeps a single number."""

    keeps = scalars = ("rounds",)

    def finish_client(self, local: Any) -> Any:
        return {"rounds": local.kept["rounds"] + 1}, {}


def test_single_number_on_disk_is_counted_as_one(start: Start) -> None:
    log = (start("run", FEDAVG, client_method=Kept, comm_round=1).folder / "fedml.log").read_text()
    assert "each client that has trained keeps 4e-06 MB" in log


@pytest.mark.slow
@pytest.mark.parametrize("given", [{}, {"model": nn.Sequential(nn.Flatten(), nn.Linear(64, 10))}])
def test_what_a_client_kept_is_read_once_a_round(
    start: Start, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    """By threads, and with a custom model by processes, of which this one adds up the updates."""
    read = ClientFiles.read

    def noting(files: ClientFiles, client: int, number: int) -> dict[str, Tensor]:
        with Path("reads").open("a") as notes:
            notes.write(f"{client} {number}\n")
        return read(files, client, number)

    monkeypatch.setattr(ClientFiles, "read", noting)
    everyone = {"client_num_in_total": 4, "client_num_per_round": 4, "classes_per_client": 3}
    start("run", FEDAVG, client_method="scaffold", worker_num=2, **everyone, **given)
    assert ("(processes)" in Path("run/fedml.log").read_text()) == bool(given)
    expected = [f"{client} 1" for client in range(4)]
    assert sorted(Path("reads").read_text().splitlines()) == expected


@pytest.mark.slow
def test_method_of_recipes_readme_runs(start: Start, content: Content) -> None:
    page = (Path(__file__).parents[2] / "recipes/README.md").read_text()
    names: dict[str, Any] = {"__name__": "my_methods"}
    exec(page.split("# my_methods.py\n")[1].split("```")[0], names)
    own, plain = start("own", FEDAVG, client_method=names["Inertia"]), start("plain", FEDAVG)
    assert content(own.folder) != content(plain.folder)


def test_topk_of_recipes_readme_uploads_a_tenth(start: Start) -> None:
    """What is left comes later: S has the uploaded elements alone, and N and E are theirs."""
    page = (Path(__file__).parents[2] / "recipes/README.md").read_text()
    code = page.split("# my_uploads.py\n")[1].split("```")[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 20
    names: dict[str, Any] = {"__name__": "my_uploads"}
    exec(code, names)
    given = {"client_num_per_round": 1, "comm_round": 1, "epochs": 1, "worker_num": 1}
    folder = start("run", FEDAVG, client_method=names["TopK"], **given).folder
    [kept] = (folder / "clients").iterdir()
    left = load_file(kept)["left"]
    assert int((left == 0).sum()) >= 605  # of 6,058
    record = fp.read_runs(folder).iloc[0]
    plain = fp.read_runs(start("plain", FEDAVG, **given).folder).iloc[0]
    whole = plain["mean_client_norm"] ** 2
    assert record["mean_client_norm"] ** 2 + float(left.norm()) ** 2 == pytest.approx(whole)
    assert record["mean_update_norm"] == pytest.approx(record["mean_client_norm"])


class Twice(fp.ClientMethod):
    """Asks for more gradients than it says, or gives weights that cannot be."""

    def gradient(self, weights: Tensor, gradient_at: Any, step: Any) -> Tensor:
        return gradient_at(weights) + gradient_at(weights)


class Weightless(fp.ClientMethod):
    def upload(self, local: Any) -> Any:
        return local.update, 0 * local.weights


@pytest.mark.parametrize(("method", "named"), [(Twice, "evaluations"), (Weightless, "weights")])
def test_method_that_breaks_its_word_is_refused(start: Start, method: Any, named: str) -> None:
    with pytest.raises(fp.UserError, match=rf"client_method: .*{named}"):
        start("run", FEDAVG, client_method=method)
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("declared", "named"),
    [
        ({"keys": ("rate",)}, r"keys: \('rate',\): must be a dict of names with positive\(\)"),
        ({"keys": {"rate": 0.1}}, "keys: {'rate': 0.1}: must be a dict"),
        ({"keys": {1: positive()}}, "keys: {1: .*must be a dict"),
        ({"sends": 5}, "sends: 5: must be a tuple of names"),
        ({"keeps": "rate"}, "keeps: 'rate': must be a tuple of names"),
        ({"returns": (1,)}, r"returns: \(1,\): must be a tuple of names"),
        ({"scalars": None}, "scalars: None: must be a tuple of names"),
    ],
)
def test_declaration_of_a_method_that_cannot_work_is_one_line(declared: Any, named: str) -> None:
    with pytest.raises(fp.UserError, match=f"^here: mine: {named}") as refused:
        name_client_method("mine", type("Mine", (fp.ClientMethod,), declared), "here")
    assert "\n" not in str(refused.value)
    assert "mine" not in METHODS


class Counting(fp.ClientMethod):
    """Counts rounds in an attribute; what it computes once, and its settings, stay."""

    def __init__(self) -> None:
        self.uploads, self.rate, self.sum = 0, 0.5, None
        self.table, self.cache = torch.ones(1, dtype=torch.float64), dict[int, Tensor]()
        self.seeded = torch.Generator().manual_seed(1)
        self.numbers, self.chance, self.idle = default_rng(1), Random(1), torch.Generator()
        self.older, self.system = RandomState(1), SystemRandom()

    def upload(self, local: Any) -> Tensor:
        torch.rand(1, generator=self.seeded)
        self.numbers.random(), self.chance.random(), self.older.rand(), self.system.random()
        self.table = self.table.to(local.update)
        self.cache[len(local.update)] = self.table
        self.sum = local.steps if self.sum is None else self.sum + local.steps
        return local.update * self.table * self.rate**self.uploads

    def finish_round(self, sent: Any, returned: Any, share: float) -> dict[str, Tensor]:
        self.uploads += 1
        return {}


def test_attribute_that_a_method_changes_is_a_warning(start: Start) -> None:
    """A resumed run begins with the first value, and so does each fork."""
    log = (start("run", FEDAVG, client_method=Counting).folder / "fedml.log").read_text()
    changed = ["uploads", "sum", "seeded", "numbers", "chance", "older"]
    assert re.findall(r"client_method: self\.(\w+) is changed", log) == changed


class Rows(fp.ClientMethod):
    """Sends a vector, which it moves in place; the subclasses mix what clients of a group have."""

    sends = returns = ("m",)

    def correction(self, sent: Any, kept: Any) -> Tensor:
        return 0.5 * sent["m"].unsqueeze(0)

    def finish_client(self, local: Any) -> Any:
        return {}, {"m": -local.update / (local.steps * local.learning_rate)}

    def finish_round(self, sent: Any, returned: Any, share: float) -> Any:
        return {"m": sent["m"].mul_(0.9).add_(returned["m"])}


class MixingGradient(Rows):
    def gradient(self, weights: Tensor, gradient_at: Any, step: Any) -> Tensor:
        gradient = gradient_at(weights)
        return gradient / (1 + gradient.norm())


class MixingUpload(Rows):
    def upload(self, local: Any) -> Tensor:
        return local.update - local.update.mean(0)


class MixingSteps(Rows):
    def upload(self, local: Any) -> Tensor:
        return local.update * local.steps.float().mean() / local.steps


class MixingWeights(Rows):
    def upload(self, local: Any) -> Any:
        return local.update, local.weights / local.weights.mean()


class MixingLargest(Rows):
    def upload(self, local: Any) -> Tensor:
        return local.update.sign() * local.update.abs().max()


class MixingNumbers(Rows):
    def gradient(self, weights: Tensor, gradient_at: Any, step: Any) -> Tensor:
        return gradient_at(weights) / (1 + step.number.max())


class OfOne(Rows):
    def upload(self, local: Any) -> Tensor:
        [update] = local.update
        return update.unsqueeze(0)


class Lost(Rows):
    """Loses an upload of two."""

    def upload(self, local: Any) -> Tensor:
        return local.update * (torch.rand(len(local.update), 1) < 0.5)


class Noise(Rows):
    def upload(self, local: Any) -> Tensor:
        return local.update + 1e-3 * torch.randn_like(local.update)


MIXING = (MixingGradient, MixingUpload, MixingSteps, MixingWeights, MixingLargest, MixingNumbers)


def test_method_that_mixes_the_clients_of_a_group_is_refused(start: Start) -> None:
    """A single client may do what it likes, and what draws is not compared."""
    said = "client_method: a client in a group gets another result than alone: "
    with pytest.raises(fp.UserError, match=rf"client_batching: 2: must be auto or off: {said}"):
        start("run", FEDAVG, client_method=MixingGradient, client_batching=2)
    start("run", FEDAVG, client_method=MixingGradient)
    for size in (10, 6058, 100_000):
        why_not = partial(why_not_in_groups, sgd=LocalSGD(1, 5, 0.1), served=torch.ones(size))
        assert [why_not(of()).startswith(said) for of in MIXING] == [True] * len(MIXING)
        assert [why_not(of()) for of in (Noise, Lost, Rows, Wide)] == [""] * 4
    assert "too many values to unpack" in why_not(OfOne())


def test_vector_that_is_sent_may_be_moved_in_place(start: Start) -> None:
    """After an interrupt in the test of a round, too; groups give what each client gives alone."""

    def stop(*_: Tensor) -> float:
        if Path("stops").exists():
            calls.append(1)
            if len(calls) == 3:  # before round 1, and of rounds 1 and 2
                raise KeyboardInterrupt
        return 0.0

    given = {"client_method": Rows, "comm_round": 3, "metrics": [stop], "worker_num": 1}
    whole = load_file(start("whole", FEDAVG, **given).folder / "model.safetensors")
    calls, _ = list[int](), Path("stops").touch()
    with pytest.raises(KeyboardInterrupt):
        start("run", FEDAVG, **given)
    Path("stops").unlink()
    resumed = load_file(start("run", FEDAVG, resume=True, **given).folder / "model.safetensors")
    groups = load_file(
        start("groups", FEDAVG, **given | {"client_batching": 3}).folder / "model.safetensors"
    )
    for name, tensor in whole.items():
        assert torch.equal(tensor, resumed[name])
        torch.testing.assert_close(tensor, groups[name], rtol=1e-4, atol=1e-5)


class Counted(fp.ClientMethod):
    """Weighs each client by its number of steps, and says by a scalar how many there were."""

    sends, returns, scalars = ("steps",), ("steps",), ("steps",)

    def gradient(self, weights: Tensor, gradient_at: Any, step: Any) -> Tensor:
        if step.sent["steps"].any() and step.number.max() > 3:
            raise ValueError("late")
        return gradient_at(weights)

    def upload(self, local: Any) -> Any:
        return local.update, local.steps * local.weights

    def finish_client(self, local: Any) -> Any:
        return {}, {"steps": local.steps}

    def finish_round(self, sent: Any, returned: Any, share: float) -> Any:
        return {"steps": returned["steps"]}

    def correction(self, sent: Any, kept: Any) -> Tensor:
        if self.late and sent["steps"].any():
            raise ValueError("late")
        return torch.zeros(1, 6058)  # for each parameter


class Watching(fp.ClientMethod):
    """Has nothing but a hook."""

    shares: ClassVar[list[float]] = []

    def finish_round(self, sent: Any, returned: Any, share: float) -> Any:
        self.shares.append(share)
        return {}


def test_hook_alone_is_called_in_each_round(start: Start) -> None:
    start("run", client_method=Watching, comm_round=3)
    assert Watching.shares[-3:] == [3 / 20] * 3


class Late(fp.ClientMethod):
    """Sends what is not in the order of the alphabet."""

    sends = ("late", "early")


def test_what_a_checkpoint_had_is_broadcast_in_the_order_of_all_ranks(tmp_path: Path) -> None:
    """A checkpoint's names are sorted; other ranks have the method's order."""
    ranks, seen = Ranks(), list[list[float]]()
    ranks.broadcast = lambda sent: seen.append([x[0].item() for x in sent])
    calls = MethodCalls(Late(), LocalSGD(1, 5, 0.1), 0, torch.zeros(2))
    vectors = ClientVectors(calls, [1], ranks, ClientFiles(tmp_path), read_ahead=False)
    state = MethodState({"early": torch.ones(2), "late": torch.full((2,), 2.0)})
    vectors.begin(3, state, [[(0,)]], ModelState(torch.zeros(2), {}), {0: 1.0})
    assert seen == [[2.0, 1.0]]


def test_what_a_client_kept_in_an_earlier_try_of_a_round_is_gone(tmp_path: Path) -> None:
    """The first try was too wide; in the second the client fails, and keeps what it had."""
    files = ClientFiles(tmp_path)
    calls = MethodCalls(METHODS["feddyn"](feddyn_alpha=0.1), LocalSGD(1, 5, 0.1), 0, torch.zeros(2))
    vectors = ClientVectors(calls, [1], Ranks(), files, read_ahead=False)
    served, state = ModelState(torch.zeros(2), {}), vectors.start()
    for number, tries in ((1, [True]), (2, [True, False])):
        for accepted in tries:
            vectors.begin(number, state, [[(0,)]], served, {0: 1.0})
            vectors.keep((0,), [accepted], {"g_k": torch.full((1, 2), float(number))})
        state = vectors.finish_round(state, {}, 1)
        files.prune([number])
    assert files.read(0, state.kept[0])["g_k"].tolist() == [1.0, 1.0]


class Wide(fp.ClientMethod):
    """Needs more memory for two clients than there is."""

    returns = ("nothing",)

    def finish_client(self, local: Any) -> Any:
        if len(local.update) > 1:
            raise RuntimeError("CUDA error: out of memory")
        return {}, {"nothing": torch.zeros_like(local.update)}


def test_end_of_memory_in_an_upload_halves_the_groups(start: Start) -> None:
    summary = start("run", FEDAVG, client_method=Wide, client_batching=4, comm_round=1).summary
    assert summary
    assert summary.client_batching == 1


class Seen(nn.Module):
    """Counts its batches, in place or in a new tensor."""

    def __init__(self, *, in_place: bool) -> None:
        super().__init__()
        self.layers, self.in_place = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), in_place
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and self.in_place:
            self.seen.add_(1)
        elif self.training:
            self.seen = self.seen + 1
        return self.layers(x)


def test_buffers_are_those_of_a_steps_first_gradient(start: Start) -> None:
    seen = []
    for name, in_place in (("same", True), ("new", False)):
        given = {"client_method": "fedsam", "sam_rho": 0.05, "comm_round": 1, "batch_size": 20}
        start(name, FEDAVG, model=Seen(in_place=in_place), epochs=1, **given)
        seen.append(load_file(f"{name}/model.safetensors")["seen"].item())
    assert seen == [4.0, 4.0]  # of 72 samples, or 71


class TooWide(fp.ClientMethod):
    def upload(self, local: Any) -> torch.Tensor:
        if local.update.any():
            raise RuntimeError("CUDA error: out of memory")
        return local.update


def test_end_of_memory_in_the_upload_of_one_client_is_a_line(start: Start) -> None:
    said = r"^client \d+: its update has no room on the GPU: .*CUDA error: out of memory"
    with pytest.raises(fp.RunError, match=said):
        start("run", FEDAVG, client_method=TooWide, comm_round=1)


@pytest.mark.parametrize("given", [{"worker_num": 1}, {"worker_num": 2}, {"client_batching": 2}])
@pytest.mark.parametrize("late", [False, True])
def test_error_of_a_method_is_no_clients(start: Start, given: dict[str, Any], late: bool) -> None:
    """Of a correction, or in the fifth step of the second round; some clients may fail."""
    method = type("Late", (Counted,), {"late": late, "__module__": __name__})
    given = given | {"max_client_failures": 20, "client_num_per_round": 2}
    with pytest.raises(fp.RunError, match=r"^round 2: client_method: raised ValueError: late"):
        start("run", FEDAVG, client_method=method, batch_size=20, epochs=5, **given)
    newest = load_file(max(Path("run/checkpoint").iterdir()))
    assert newest["..sent.steps"].tolist() == [20.0]  # five epochs of 72 samples
