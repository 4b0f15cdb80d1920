"""A user's own images, tensors and loaders, and models that cannot be trained on them."""

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import fednnnn_plugin as fp
from fednnnn_plugin.assembly.model_check import own_copy
from fednnnn_plugin.assembly.trial_pass import check_model
from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.recipe import find_recipe
from fednnnn_plugin.rounds.batches import LoaderBatches
from fednnnn_plugin.rounds.loaders import LoaderData, follow_the_engine

from ..tiny import PARTS, TEST, Doing, Start, Tiny, quick_run

TWO = {"client_num_in_total": 2, "client_num_per_round": 2, "batch_size": 6}
TWO |= {"partition_method": "iid", "partition_alpha": 0.5}


@pytest.mark.slow
def test_recipe_of_recipes_readme_runs(start: Start) -> None:
    """On a folder of images; these are smaller."""
    for part, count in (("train", 6), ("test", 2)):
        for label, name in enumerate(("ant", "bee", "cow")):
            folder = Path("images", part, name)
            folder.mkdir(parents=True)
            for i in range(count):
                Image.new("RGB", (8, 8), (80 * label, 9 * i, i)).save(folder / f"{i}.png")
    readme = (Path(__file__).parents[2] / "recipes" / "README.md").read_text()
    section = readme.partition("## Your own data\n")[2].partition("```yaml\n")[2]
    digits = find_recipe("digits_noniid_b_fednnnn").read_text()
    rest = re.sub(r"(?ms)^(data|model)_args:\n(  .*?\n)+", "", digits)
    Path("flowers.yaml").write_text(section.partition("```")[0] + rest)
    given = {"data_dir": "images", "data_cache_dir": "cache", "image_size": [8, 8]}
    run = start("run", "flowers.yaml", comm_round=1, **TWO, **given)
    assert fp.read_runs(run.folder)["clients"].tolist() == [2]
    assert fp.load_model("run")(torch.zeros(2, 3, 8, 8)).shape == (2, 3)


def test_run_folder_is_read_without_its_code(start: Start) -> None:
    """Of tokens, which stay integers."""
    named = TWO | {"data": "own:words", "model": "own:reader"}
    start("run", allow_code=True, **named)
    model = fp.load_model("run", allow_code=True)
    assert model(torch.zeros(2, 5, dtype=torch.int64)).shape == (2, 3)
    sys.modules.pop("own")
    Path("own.py").write_text("open('was-here', 'w')")
    assert fp.read_runs("run")["round"].tolist() == [1, 2]
    for refused, where in (
        (lambda: start("run", resume=True, **named), r"data_args\.dataset"),
        (lambda: fp.load_model("run"), r"run/recipe\.yaml: model_args\.model"),
    ):
        with pytest.raises(UserError, match=f"^{where}: .*allow_code=True"):
            refused()
    assert not Path("was-here").exists()


class Counting:
    """A loader that tells how often it was passed through."""

    passes = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.passes += 1
        yield torch.full((2, 3), self.passes, dtype=torch.float64), torch.tensor([0, 1]).int()
        yield torch.arange(3), torch.tensor([2, 0, 1])


def test_loader_is_passed_through_once_an_epoch() -> None:
    loader = Counting()
    data = LoaderData({0: [], 1: loader}, {0: 0, 1: 5}, loader, num_classes=3)
    batches = LoaderBatches(data, LocalSGD(3, 2, 0.1), torch.device("cpu"))
    seen = [list(epoch) for epoch in batches.epochs(1, round_number=1)]
    assert loader.passes == 3
    assert [epoch[0][0].tolist() for epoch in seen] == [[[e] * 3] * 2 for e in (1.0, 2.0, 3.0)]
    (inputs, labels), (tokens, _) = seen[0]
    assert (inputs.dtype, labels.dtype) == (torch.float32, torch.int64)
    assert tokens.dtype == torch.int64  # indices of words stay what they are


def test_steps_are_counted_over_passes_of_a_loader() -> None:
    """Three steps of a loader of two batches; of one without a batch none."""
    loader, sgd = Counting(), LocalSGD(None, 2, 0.1, local_steps=3)
    data = LoaderData({0: [], 1: loader}, {0: 0, 1: 5}, loader, num_classes=3)
    batches = LoaderBatches(data, sgd, torch.device("cpu"))
    assert [len(list(epoch)) for epoch in batches.epochs(1, round_number=1)] == [2, 1]
    assert [len(list(epoch)) for epoch in batches.epochs(0, round_number=1)] == [0]
    parts = LoaderBatches(data, LocalSGD(0.5, 2, 0.1), torch.device("cpu"))
    with pytest.raises(
        UserError, match=r"^train_args\.epochs: client 1's data: Counting: .*ends by itself"
    ):
        next(parts.epochs(1, round_number=1))
    listed = replace(data, train_loaders={1: [*loader]})
    parts = LoaderBatches(listed, LocalSGD(1.5, 2, 0.1), torch.device("cpu"))
    assert [len(list(epoch)) for epoch in parts.epochs(1, round_number=1)] == [2, 1]


class Drawn(Dataset):
    """Samples that are drawn where they are read: in a loader's worker."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        return index + torch.rand(())


def test_loader_follows_the_engine() -> None:
    """However often it was passed through, and with workers that were to stay."""
    staying = {"num_workers": 1, "persistent_workers": True, "generator": torch.Generator()}
    loader = DataLoader(Drawn(), 2, shuffle=True, **staying)
    next(iter(loader))
    follow_the_engine(loader)
    passes = []
    for seed in (0, 1, 0):
        torch.manual_seed(seed)
        passes.append(torch.cat([*loader]).tolist())
    assert passes[0] == passes[2] != passes[1]


def test_loader_that_is_an_iterator_is_refused() -> None:
    batches = [(torch.zeros(1, 2), torch.zeros(1))]
    for train, test, whose in ((iter(batches), batches, "client 0"), (batches, iter([]), "test")):
        with pytest.raises(UserError, match=f"dataset: .*{whose}.*once"):
            LoaderData({0: train}, {0: 1}, test, 2)


def buffered(tensor: torch.Tensor, *, persistent: bool = True) -> nn.Module:
    model = nn.Linear(2, 2)
    model.register_buffer("seen", tensor, persistent=persistent)
    return model


def remembering() -> nn.Module:
    model: Any = nn.Linear(2, 2)
    model.last = model(torch.ones(1, 2))
    return model  # type: ignore[no-any-return]


def coder(again: Callable[[torch.Tensor], torch.Tensor]) -> nn.Module:
    """Two layers, of which the second one's weight is made of the first one's."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    whole = torch.zeros(8, 4)  # in one memory, as on a GPU those of a recurrent layer are
    model[0].weight = nn.Parameter(whole[:4])
    model[1].weight = nn.Parameter(again(whole))
    return model


HIDING = nn.Linear(2, 2)
vars(HIDING)["state_dict"] = dict  # without a weight
LEAST = torch.tensor(torch.finfo(torch.float64).min, dtype=torch.float64)  # not in float32


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        (nn.Linear(2, 2).requires_grad_(requires_grad=False), "no parameter that requires"),
        (nn.Linear(2, 2, dtype=torch.complex64), "weight: torch.complex64: must be float16"),
        (HIDING, "bias: requires .* not have it"),
        (nn.utils.weight_norm(nn.Linear(2, 2)), "weight is computed .*parametrizations"),
        (remembering(), "last is computed .*detach"),
        (torch.jit.ScriptModule(), "is TorchScript"),
        (coder(lambda whole: whole[:4].t()), "1.weight: has the memory of 0.weight, .* one Param"),
        (coder(lambda whole: whole[3:7]), "1.weight: has the memory of 0.weight"),
        (buffered(LEAST), "seen: not finite"),
        (buffered(torch.ones(2) * 1j, persistent=False), "seen: torch.complex64"),
        (buffered(torch.ones(2).to_sparse()), "seen: torch.sparse_coo on cpu"),
    ],
)
def test_model_that_cannot_be_averaged_is_refused(model: nn.Module, problem: str) -> None:
    with pytest.raises(UserError, match=f"^model_args.model: mine:? .*{problem}"):
        own_copy(model, "mine", torch.float32)


def test_parameters_side_by_side_in_one_memory_are_copied() -> None:
    own_copy(coder(lambda whole: whole[4:]), "mine", torch.float32)


@pytest.mark.slow
def test_model_working_in_place_changes_no_data(tiny: Tiny, data: FederatedData) -> None:
    before = data.test_images.clone(), data.train_images.clone()
    shift = Doing(lambda _, x: x.sub_(0.5).div_(2))
    tiny(comm_round=2, model=nn.Sequential(nn.Flatten(), shift, nn.Linear(64, 10)))
    assert torch.equal(data.test_images, before[0])
    assert torch.equal(data.train_images, before[1])


PAIR = Doing(lambda layer, x: (x, x) if layer.training else x)


@pytest.mark.parametrize(
    ("layers", "problem"),
    [
        ([nn.Linear(64, 9)], r"gives \[1, 9\] for a batch of \[1, 1, 8, 8\], not "),
        ([nn.Linear(64, 10), PAIR], "in training, gives tuple .* join several outputs"),
        ([Doing(lambda *_: sys.exit(0))], "does not take inputs .* SystemExit: 0"),
        ([nn.Linear(64, 10), nn.BatchNorm1d(10)], "train_args.batch_size: 6: leaves client 0"),
    ],
)
def test_model_that_does_not_take_images_is_refused(
    data: FederatedData, layers: list[nn.Module], problem: str
) -> None:
    with pytest.raises(UserError, match=f"^(model_args.model: mine: )?{problem}"):
        check_model(nn.Sequential(nn.Flatten(), *layers), "mine", data, LocalSGD(1, 6, 0.1))


class Rows(Dataset):
    """What a function makes of each sample of some inputs and labels."""

    def __init__(self, inputs: Tensor, labels: Tensor, form: Any) -> None:
        self._inputs, self._labels, self._form = inputs, labels, form

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> object:
        return self._form(self._inputs[index], self._labels[index])


FOUR = {"client_num_in_total": 4, "client_num_per_round": 4, "comm_round": 1}


def rows(form: Callable[[Tensor, Tensor], object]) -> tuple[list[Rows], Rows]:
    return [Rows(*part, form) for part in PARTS], Rows(*TEST, form)


@pytest.mark.slow
def test_mappings_of_batches_train_as_pairs(tmp_path: Path) -> None:
    model = nn.Linear(6, 7)  # more classes than the labels have
    for name, form in (("pairs", lambda x, y: (x, y)), ("maps", lambda x, y: {"label": y, "x": x})):
        quick_run(tmp_path / name, model=model, data=rows(form), **FOUR)
    pairs, maps = (fp.load_model(tmp_path / each, model) for each in ("pairs", "maps"))
    assert torch.equal(pairs.weight, maps.weight)


@pytest.mark.slow
def test_batches_may_each_be_padded_to_a_length_of_their_own(tmp_path: Path) -> None:
    """Of texts of 2 to 6 tokens; the test's loss is that of the model sample by sample."""
    texts = [torch.arange(1, n + 1) for n in (3, 5, 2, 6, 4)]

    def padded(batch: list[Tensor]) -> tuple[Tensor, Tensor]:
        pad = nn.utils.rnn.pad_sequence
        return pad(batch, batch_first=True), pad(batch, batch_first=True, padding_value=-100)

    def loader() -> DataLoader[Tensor]:
        return DataLoader(texts, 2, collate_fn=padded)

    # Its outputs [n, C, L] of inputs [n, L].
    model = nn.Sequential(nn.Embedding(7, 8), nn.Linear(8, 7), Doing(lambda _, x: x.mT))
    given = {"client_num_in_total": 2, "client_num_per_round": 2, "comm_round": 1}
    run = quick_run(tmp_path / "run", model=model, data=([loader()] * 2, loader()), **given)
    net = fp.load_model(run, model).eval()
    tokens = [(nn.functional.cross_entropy(net(x[None]), x[None]), len(x)) for x in texts]
    mean = sum(loss.item() * count for loss, count in tokens) / sum(n for _, n in tokens)
    assert fp.read_runs(run)["test_loss"].item() == pytest.approx(mean, rel=1e-5)


@pytest.mark.slow
def test_validation_parts_of_datasets_are_of_one_data_whatever_the_seed(tmp_path: Path) -> None:
    """Each seed holds out other samples; the fingerprint is of all of them."""
    given = {"model": nn.Linear(6, 4), **FOUR, "validation_fraction": 0.2, "worker_num": 1}
    for seed in (0, 1):
        name = tmp_path / "runs" / str(seed)
        quick_run(name, data=rows(lambda *xy: xy), **given, random_seed=seed)
    assert fp.summary(fp.read_runs(tmp_path / "runs"))["seeds"].tolist() == [2]
    other = [TensorDataset(x + 1, y) for x, y in PARTS]
    quick_run(tmp_path / "runs" / "other", data=(other, Rows(*TEST, lambda *xy: xy)), **given)
    assert fp.summary(fp.read_runs(tmp_path / "runs"))["seeds"].tolist() == [2, 1]


@pytest.mark.slow
def test_each_client_may_bring_a_test_part(tmp_path: Path) -> None:
    """Of 15, 10 and 15 samples, in several forms; client 1 has none. The test is all of them."""
    clients, _ = rows(lambda x, y: (x, y))
    parts = [*zip(TEST[0].split((15, 10, 15)), TEST[1].split((15, 10, 15)), strict=True)]
    first, second, third = parts
    tests = {"a": Rows(*first, lambda *xy: xy), "b": None, "c": second}
    tests["d"] = DataLoader(TensorDataset(*third), 4)
    given = {"model": nn.Linear(6, 4), **FOUR, "per_client": True}
    run = quick_run(tmp_path / "run", data=(clients, tests), **given)
    found = fp.client_results(run)
    assert found["client"].tolist() == [0, 2, 3]
    model = fp.load_model(run, nn.Linear(6, 4)).eval()
    own = [float((model(x).argmax(1) == y).double().mean()) for x, y in parts]
    assert found["accuracy"].tolist() == own
    whole = float((model(TEST[0]).argmax(1) == TEST[1]).double().mean())
    assert fp.read_runs(run)["test_acc"].tolist() == [whole]
    validated = quick_run(
        tmp_path / "part", data=(clients, tests), validation_fraction=0.1, **given
    )
    assert fp.client_results(validated)["samples"].tolist() == [3, 5, 2, 4]


@pytest.mark.parametrize(
    ("form", "said"),
    [
        (lambda x, y: (x, y, 0), "a list of 3"),
        (lambda x, y: ((x, x), y), "inputs .* list of 2: must be one tensor"),
        (
            lambda x, y: (x, str(int(y))),
            "labels: names or other .*: \\['0', '3', '1'\\]: .*factorize",
        ),
        (lambda x, y: (x.to(torch.uint8), y), "inputs: torch.uint8 .*float"),
        (lambda x, y: (x, y.double()), "labels: torch.float64 .*astype.int.*mse"),
        (lambda x, y: (x, y[None]), r"labels: torch.int64 of \[30, 1\].*y\[:, 0\]"),
    ],
)
def test_batches_that_are_no_pairs_say_what_they_are(form: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"data_args.dataset: .*client 0: .*{said}"):
        quick_run(tmp_path / "run", model=nn.Linear(6, 4), data=rows(form), **FOUR)
    # Of 30, 50, 20 and 40 samples in batches of 25.
    of = [DataLoader(TensorDataset(*part), 25, drop_last=True) for part in PARTS]
    with pytest.raises(UserError, match=r"client 2: .* 20 samples .* 25 .*drop_last"):
        quick_run(tmp_path / "run", model=nn.Linear(6, 4), data=(of, TEST), **FOUR)


class Bag(nn.Module):
    """Reads the tokens that it knows, and, as some do, the positions and a type for each."""

    def __init__(self, rows: int, known: int = 48) -> None:
        super().__init__()
        self.known = known
        self.words, self.places, self.types = (nn.Embedding(n, 4) for n in (rows, 3, 2))

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(3, device=x.device).expand_as(x)
        embedded = (
            self.words(x.clamp(max=self.known - 1))
            + self.places(places)
            + self.types(torch.zeros_like(x))
        )
        return embedded.mean(1)


@pytest.mark.slow
@pytest.mark.parametrize("of", [tuple, lambda part: Rows(*part, lambda *xy: xy)])
def test_token_without_a_row_is_named_with_its_client(
    tmp_path: Path, of: Callable[..., Any]
) -> None:
    x, y = torch.arange(48).reshape(16, 3), torch.arange(16) % 4
    clients = [of((x[k : k + 4], y[k : k + 4])) for k in (0, 4, 8, 12)]
    run = partial(quick_run, data=(clients, of((x[:3], y[:3]))), **FOUR)
    with pytest.raises(UserError, match=r"client 3: token 47: words .* 0 to 46"):
        run(tmp_path / "run", model=Bag(47))
    for name, model in (("all", Bag(48)), ("known", Bag(40, known=40))):
        assert run(tmp_path / name, model=model).summary.rounds == 1


@pytest.mark.slow
def test_clients_of_a_split_are_counted(tmp_path: Path) -> None:
    """All of them train where all of a recipe's 20 do; what is set is not changed."""
    run = partial(fp.run, "digits_noniid_b_fednnnn", data=(PARTS, TEST), model=nn.Linear(6, 4))
    quick: dict[str, object] = {"comm_round": 1, "epochs": 1, "using_gpu": False}
    for name, given, clients in (
        ("all", {"classes_per_client": None}, 4),
        ("two", {"client_num_per_round": 2}, 2),
    ):
        found = run(output=tmp_path / name, overrides=quick | given)
        assert fp.read_runs(found.folder)["clients"].tolist() == [clients]
        assert "client_num_in_total: 4\n" in (tmp_path / name / "recipe.yaml").read_text()
    with pytest.raises(UserError, match=r"client_num_in_total: 5: must be 4"):
        run(output=tmp_path / "run", overrides=quick | {"client_num_in_total": 5})


@pytest.mark.slow
def test_weighting_of_unequal_clients_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    equal = [(x[:20], y[:20]) for x, y in PARTS]
    for parts, weighting, said in (
        (PARTS, "uniform", "uniform: clients of 20 to 50 samples have equal weights; "),
        (PARTS, "samples", "samples: clients of 20 to 50 samples have weights by their samples"),
        (equal, "uniform", ""),
    ):
        given = {"data": (parts, TEST), "client_weighting": weighting, "overwrite": True}
        run = quick_run(tmp_path / "run", model=nn.Linear(6, 4), **FOUR, **given)
        first = capsys.readouterr().err.split("\n")[0]
        assert (f"client_weighting: {said}" in first) == bool(said)
    report = fp.report(run.folder, out=tmp_path / "report")
    assert "; weights uniform." in report.read_text()


@pytest.mark.slow
def test_resume_auto_begins_or_continues(tmp_path: Path) -> None:
    given = {"model": nn.Linear(6, 4), "data": (PARTS, TEST), "resume": "auto"} | FOUR
    for rounds in (1, 2):
        run = quick_run(tmp_path / "run", **given | {"comm_round": rounds})
        assert fp.read_runs(run.folder)["round"].tolist() == [*range(1, rounds + 1)]
    assert quick_run(tmp_path / "run", **given | {"comm_round": 2}).was_finished
    with pytest.raises(UserError, match="resume: 'yes'"):
        quick_run(tmp_path / "run", **given | {"resume": "yes"})
