"""Running a recipe, from Python and from the command alike."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from fednnnn_plugin.assembly.federation import one_run, run_federation
from fednnnn_plugin.assembly.from_recipe import (
    check_services,
    located,
    recipe_followers,
    run_folder,
    run_mode,
)
from fednnnn_plugin.assembly.inputs import Inputs, recipe_inputs
from fednnnn_plugin.assembly.objects import as_options, names_and_objects, registered
from fednnnn_plugin.assembly.run_facts import log_base
from fednnnn_plugin.assembly.unchanged import is_finished
from fednnnn_plugin.client.method import ClientMethod
from fednnnn_plugin.data.own_data import DATA
from fednnnn_plugin.data.own_forms import clients_of
from fednnnn_plugin.errors import OUTPUT, UserError, in_python, shown
from fednnnn_plugin.files import checked_path
from fednnnn_plugin.followers.follower import Follower
from fednnnn_plugin.followers.progress import progress_display
from fednnnn_plugin.packaged_recipes import BASE
from fednnnn_plugin.processes.endings import exit_at_signals, open_standard_files
from fednnnn_plugin.processes.job import choose_ranks, ending_together
from fednnnn_plugin.processes.ranks import agreed
from fednnnn_plugin.recipe import Recipe, find_recipe, load_recipe
from fednnnn_plugin.rounds.augmentation import Transform
from fednnnn_plugin.rounds.sampling import Available, Sampler
from fednnnn_plugin.run_folder.folder import RunFolder
from fednnnn_plugin.run_folder.records import Summary

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from fednnnn_plugin.assembly.objects import Data, RateSchedule


@dataclass(frozen=True)
class Run:
    """A run that has ended.

    Attributes:
        folder: the run folder; the path is absolute.
        summary: the content of ``summary.json``; None on MPI ranks other than 0.
        was_finished: True if it was already finished, so that nothing was done.
    """

    folder: Path
    summary: Summary | None
    was_finished: bool = False

    def __fspath__(self) -> str:
        """Return the folder, for functions that take a path, such as :func:`read_runs`."""
        return str(self.folder)


@in_python
def run(
    recipe: Path | str,
    *,
    model: "nn.Module | Callable[..., nn.Module] | str | None" = None,
    data: "Data | Callable[..., Data] | str | None" = None,
    rule: "type[Optimizer] | str | None" = None,
    client_method: type[ClientMethod] | str | None = None,
    loss: "Callable[[Tensor, Tensor], Tensor] | str | None" = None,
    client_optimizer: "Callable[..., Optimizer] | str | None" = None,
    metrics: "Sequence[Callable[[Tensor, Tensor], float] | str] | None" = None,
    client_sampling: Sampler | str | None = None,
    client_availability: Available | str | None = None,
    train_transform: Transform | str | None = None,
    learning_rate_schedule: "RateSchedule | None" = None,
    stop: Mapping[str, object] | None = None,
    label: str | None = None,
    overrides: Mapping[str, object] | Sequence[str] | None = None,
    output: Path | str | None = None,
    resume: bool | Literal["auto"] = False,
    overwrite: bool = False,
    allow_code: bool = False,
    backend: str | None = None,
    followers: Sequence[Follower] = (),
    mlops: Callable[[], Follower] | None = None,
) -> Run:
    """Run a recipe, like the command ``fednnnn run``, and show the progress.

    Model, data, rule and so on replace those of the recipe: by name, as ``"module:name"``, or as
    objects, which need no ``allow_code``. The run folder stores their fingerprint, so that the run
    cannot be resumed with other ones.

    Args:
        recipe: a path, or the name of a recipe that comes with the package.
        model: a module, whose weights are ``w_0`` and which is not changed; or a function of the
            number of classes that returns one, with weights drawn by the recipe's seed.
        data: ``(train_inputs, train_labels, test_inputs, test_labels)``, tensors or arrays, divided
            between the clients by the recipe, or by a fifth value: a list with each client's
            positions; or the owner of each sample, such as a writer, with a sixth value for the
            test samples. Or ``(inputs, labels, owners)``. Or ``(clients, test)``: a list with each
            client's part, and the test part, or a list with that of each client or None, which all
            together are the test; both lists may be mappings with the clients' names. A part is
            ``(inputs, labels)``, a ``Dataset`` or a ``DataLoader``, whose ``generator`` is replaced
            by torch's global one. A ``datasets.Dataset`` of two columns stands for inputs and
            labels, and two of them, or a ``DatasetDict`` of ``train`` and ``test``, for the four
            arrays; ``partition_by`` names a third column, of the owners. Or a function that returns
            one of these. The number of clients is that of a split, unless ``overrides`` set
            ``client_num_in_total``; all of them train in a round where all of the recipe's do.
        rule: a server rule: a subclass of ``torch.optim.Optimizer`` with the decorator
            ``@fednnnn_plugin.rule(...)``.
        client_method: what clients do beside plain local SGD: ``"fedprox"``, ``"scaffold"``,
            ``"feddyn"``, ``"fedsam"``, ``"fedcm"``, ``"fednova"``, or a subclass of
            :class:`~fednnnn_plugin.ClientMethod`.
        loss: a function of outputs and targets ``[n, ...]`` that returns the mean of a batch, with
            no trained parameters of its own; or ``"cross_entropy"``, ``"bce_with_logits"``,
            ``"mse"``.
        client_optimizer: a class of ``torch.optim`` or like one, or a ``functools.partial`` of it;
            it is called with the parameters, ``lr`` and ``weight_decay``, anew for each client
            and round.
        metrics: functions of the outputs and targets of a whole test, on the CPU and in the order
            of the test set, that return a number; or names of scikit-learn's scorers, such as
            ``"f1_macro"``. The larger the better, unless a function has the attribute
            ``higher_is_better = False``.
        client_sampling: ``"uniform"``, ``"by_size"``, ``"round_robin"``; or a function of round
            (from 1), number of clients K, size of the cohort m, and a ``torch.Generator`` of the
            round, that returns the clients of the round: m different numbers from 0 to K - 1, which
            depend on these four arguments only.
        client_availability: a function of the round (from 1) that returns the clients that are
            available in it, of which m are drawn, or all if they are fewer; or a CSV file.
        train_transform: augmentation: a function of the inputs of a training batch ``[b, ...]``
            that returns inputs of the same form, images before they are normalised; or a transform
            of ``torchvision.transforms.v2``, which is applied image by image. It may draw from the
            global generators, or from a ``generator`` that it takes as an argument.
        learning_rate_schedule: the learning rate over the rounds: ``"cosine"``, a mapping such as
            ``{"name": "step", "every": 30, "factor": 0.1, "warmup_rounds": 5}``; a function of the
            round (from 1) that returns the factor of ``learning_rate``; or a scheduler of
            ``torch.optim.lr_scheduler``, or a ``functools.partial`` of one, which is stepped once
            after each round.
        stop: ends the run before its last round: ``{"target": 0.97}`` at a value of the
            accuracy, ``{"patience": 20, "min_delta": 0.001}`` after so many rounds that were not
            better by more; ``"metric"`` is ``"accuracy"``, ``"loss"``, one of the metrics, or with
            ``per_client`` ``"worst_10"``.
        label: what tables and figures call the method, such as ``"FedNNNN (ours)"``.
        overrides: settings to change: ``{"train_args.comm_round": 3}``, or
            ``["train_args.comm_round=3"]`` as for the command. The section may be left out if only
            one has a key of that name. None removes a setting, so that its default holds. Arguments
            of your own functions are keys as well: ``{"model_args.width": 64}``. With another rule
            or client method, the keys that only the recipe's own has are left out.
        output: the run folder; ``runs/<recipe>-seed<seed>`` by default.
        resume: continue the run in the folder from its newest checkpoint; a run that has finished
            is not repeated, and it is an error if there is none. ``"auto"`` begins one in that
            case.
        overwrite: replace the run in the folder.
        allow_code: allow a ``module:name`` in the recipe to run.
        backend: ``"sp"`` or ``"MPI"``; by default the recipe's, and MPI under ``mpirun``.
        followers: a list of objects that are notified of the progress.
        mlops: creates the follower that reports to FedML's service, for ``using_mlops: true``.

    Returns:
        The :class:`Run`, with its folder and summary.

    Raises:
        UserError: a mistake in the recipe, the data or the folder; nothing is written. An
            exception in your own code is its ``__cause__``.
        RunError: the run cannot continue; its last finished round is saved.
        KeyboardInterrupt: Ctrl-C; the last finished round is saved.
        SystemExit: SIGTERM, SIGHUP or SIGUSR1, if the program has no handler of its own and this is
            its main thread; the last finished round is saved, and the exit status is 143.
        OSError: a file cannot be written, such as on a full disk.

    Example::

        import fednnnn_plugin as fp

        run = fp.run("digits_noniid_b_fednnnn", overrides={"train_args.comm_round": 10})
        fp.read_runs(run.folder).plot(x="round", y="test_acc")
    """
    if not isinstance(resume, bool) and resume != "auto":
        raise UserError("resume", shown(resume), 'must be True, False or "auto"')
    if output is not None:
        checked_path(OUTPUT, output)
    must = "must be a list of objects of fednnnn_plugin.Follower"
    if not isinstance(followers, list | tuple):
        raise UserError("followers", shown(followers), must)
    for each in followers:
        if not isinstance(each, Follower):
            raise UserError("followers", shown(each), must)
    names, objects = names_and_objects(
        {
            "model": model,
            "data": data,
            "rule": rule,
            "client_method": client_method,
            "loss": loss,
            "client_optimizer": client_optimizer,
            "metrics": metrics,
            "client_sampling": client_sampling,
            "client_availability": client_availability,
            "train_transform": train_transform,
            "learning_rate_schedule": learning_rate_schedule,
            "stop": stop,
        }
    )
    called = as_options({} if label is None else {"tracking_args.label": label})
    with exit_at_signals():
        _, ended = start_recipe(
            recipe,
            overrides=[*names, *called, *as_options(overrides or ())],
            objects=objects,
            output=output,
            resume=resume,
            overwrite=overwrite,
            allow_code=allow_code,
            backend=backend,
            followers=followers,
            mlops=mlops,
        )
    return ended


def start_recipe(
    recipe: Path | str,
    *,
    overrides: Sequence[str] = (),
    objects: Mapping[str, object] = MappingProxyType({}),
    output: Path | str | None = None,
    resume: bool | Literal["auto"] = False,
    overwrite: bool = False,
    allow_code: bool = False,
    backend: str | None = None,
    followers: Sequence[Follower] = (),
    mlops: Callable[[], Follower] | None = None,
    only_check: bool = False,
) -> tuple[Recipe, Run]:
    """Run a recipe, as :func:`run` does, with the ``objects`` in the place of ``section.key``.

    ``only_check`` ends it where the first round would begin, with nothing written to the folder.
    Returns the recipe as it was loaded, too.
    """
    open_standard_files()
    here = Path.cwd()
    with one_run(), registered(objects) as names:
        ranks = choose_ranks(backend)
        with ending_together(ranks), agreed(ranks):
            found = find_recipe(str(recipe))
            loaded = load_recipe(
                found,
                overrides,
                allow_code=allow_code,
                objects=names,
                clients=clients_of(objects.get(DATA)),
            )
            check_services(loaded, overrides, by_fedml=mlops is not None)
            mode = run_mode(resume=bool(resume), overwrite=overwrite)
            folder, placed = run_folder(loaded, output, here), located(loaded, here)
        wanted = loaded.comm_args.backend  # sp is the default, which mpirun overrules
        if wanted == "MPI" and backend is None and ranks.backend == "sp":
            ranks = choose_ranks("MPI")

        def load() -> Inputs:
            if found == BASE and ranks.rank == 0:
                log_base(loaded)
            return recipe_inputs(placed, ranks, objects)

        with ending_together(ranks), progress_display(loaded.train_args.comm_round) as display:
            if resume == "auto":
                begun = ranks.broadcast_object(RunFolder(folder).holds_rounds())
                mode = "resume" if begun else "new"
            tracking = recipe_followers(loaded, mlops) if ranks.rank == 0 else []
            summary = run_federation(
                loaded,
                load,
                folder,
                mode,
                ranks=ranks,
                followers=[display, *tracking, *followers],
                only_check=only_check,
            )
            ranks.agree()  # whoever goes on finds the whole folder
    if ranks.rank:
        return loaded, Run(folder, None)
    if only_check:
        finished = mode == "resume" and is_finished(loaded, RunFolder(folder))
        return loaded, Run(folder, None, finished)
    return loaded, Run(folder, summary or Summary.read(RunFolder(folder).summary), summary is None)
