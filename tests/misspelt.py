"""A user's program for mypy: what is correct passes, and each misspelt name is an error.

mypy, which is strict, also refuses an ``ignore`` of a line that has no error. It runs in the gate.
"""

import fednnnn_plugin as fp

run = fp.run("x", overwrite=True, stop={"target": 0.9}, learning_rate_schedule="cosine")
runs = fp.read_runs(run.folder)
fp.figures.accuracy(runs, legend=True)
fp.figures.client_quantiles(runs, names=False)
clients = fp.client_results(run)["accuracy"].min()
net = fp.load_model(run.folder)
best: dict[str, float] = fp.tune("x", grid={"beta": [0.5, 0.7]}).best
page = fp.report(run.folder, out="report").name
fp.figures.partition([[1, 2]]).set_title("t")
fp.figures.partition("x", allow_code=True)
fp.report("n-*", [run.folder], formats="png", layers=["fc1"])

rules = fp.PaperFedAvg, fp.PaperFedProx
fp.no_such_thing  # type: ignore[attr-defined]  # noqa: B018
fp.run("x", overwritten=True)  # type: ignore[call-arg]
fp.tune("x", grids={})  # type: ignore[call-arg]
fp.report("x", output="y")  # type: ignore[call-arg]
fp.read_runs("x", folder="y")  # type: ignore[call-arg]
fp.figures.accuracy(runs, colunm="test_acc")  # type: ignore[call-arg]
fp.figures.metric(runs, name="mse", legends=True)  # type: ignore[call-arg]
fp.figures.norms(runs, layers="fc1")  # type: ignore[call-arg]
fp.figures.search("study", steps="eta")  # type: ignore[call-arg]
fp.figures.partition("x", allow=True)  # type: ignore[call-arg]
