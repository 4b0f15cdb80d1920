"""Finding hyperparameters: the paper's procedure (appendix, Steps 1 to 3) on Optuna."""

from fednnnn_plugin.callable_package import make_callable

make_callable(__name__, ".tuning")
