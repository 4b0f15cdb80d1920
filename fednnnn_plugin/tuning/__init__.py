"""Finding hyperparameters: the paper's procedure (appendix, Steps 1 to 3) on Optuna."""
