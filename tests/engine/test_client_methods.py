"""Client methods: the same bits however they run; a method of a user's; what does not fit."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import fednnnn_plugin as fp
from fednnnn_plugin.engine.followers import Follower

from .conftest import cell

FEDAVG, FEDNNNN = "digits_noniid_b_fedavg", "digits_noniid_ub_fednnnn"
SCAFFOLD = {"client_method": "scaffold", "client_num_per_round": 5, "comm_round": 3}
Content = Callable[[Path], tuple[object, ...]]
Start = Callable[..., fp.Run]


@pytest.mark.slow
def test_scaffold_in_groups_is_scaffold_alone(start: Start) -> None:
    exact = SCAFFOLD | {"precision": "fp64", "comm_round": 2, "client_weighting": "samples"}
    one = start("alone", FEDNNNN, **exact).folder
    other = start("groups", FEDNNNN, client_batching=3, **exact).folder
    found, expected = (load_file(folder / "model.safetensors") for folder in (one, other))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


class Stopping(Follower):
    def client_done(self, number: int, done: int, of: int) -> None:
        if (number, done) == (3, 2):
            raise InterruptedError


@pytest.mark.slow
def test_scaffold_goes_on_with_the_same_bits(start: Start, content: Content) -> None:
    """After a whole round, and within one; lost and damaged files: ``trust/``."""
    whole = start("whole", FEDAVG, worker_num=1, **SCAFFOLD).folder
    start("stop", FEDAVG, worker_num=2, **SCAFFOLD | {"comm_round": 2})
    with pytest.raises(InterruptedError):
        start("within", FEDAVG, followers=[Stopping()], **SCAFFOLD)
    for name in ("stop", "within"):
        folder = start(name, FEDAVG, resume=True, worker_num=2, **SCAFFOLD).folder
        assert content(folder) == content(whole)
        names = [{path.name for path in (of / "clients").iterdir()} for of in (whole, folder)]
        assert names[0] == names[1]
    # Of what two checkpoints need, the older one has a file a client; another method needs none.
    older = Counter(name[:13] for name in names[0] if "round-000003" not in name)
    assert set(older.values()) == {1}
    start("whole", FEDAVG, comm_round=1, overwrite=True)
    assert not (whole / "clients").exists()


@pytest.mark.slow
def test_method_of_a_user_is_carried_alike(start: Start, content: Content) -> None:
    """It draws; as an object and by its name, on one worker and two, with a stop and without."""
    drag = {"client_method": cell()["Drag"], "drag_mu": 0.25}
    whole = start("whole", FEDAVG, worker_num=1, **drag)
    start("parts", FEDAVG, worker_num=2, comm_round=1, **drag)
    parts = start("parts", FEDAVG, worker_num=2, resume=True, **drag)
    named = start("named", FEDAVG, allow_code=True, **drag | {"client_method": "own:Drag"})
    assert content(parts.folder) == content(named.folder) == content(whole.folder)
    assert "client_method: own:Drag" in Path("named/recipe.yaml").read_text()
    other = cell("return noise -", "return -")["Drag"]
    for change, key in (({"drag_mu": 0.5}, "drag_mu"), ({"client_method": other}, "client_method")):
        with pytest.raises(fp.UserError, match=key):
            start("whole", FEDAVG, resume=True, **drag | change)


@pytest.mark.slow
def test_method_of_recipes_readme_runs(start: Start, content: Content) -> None:
    page = (Path(__file__).parents[2] / "recipes/README.md").read_text()
    names: dict[str, Any] = {"__name__": "my_methods"}
    exec(page.split("# my_methods.py\n")[1].split("```")[0], names)
    own, plain = start("own", FEDAVG, client_method=names["Inertia"]), start("plain", FEDAVG)
    assert content(own.folder) != content(plain.folder)
