"""One of several processes that work on a study: worker.py STUDY NAME TRIALS."""

import sys

import optuna
from chosen import storage

name, worker, trials = sys.argv[1], sys.argv[2], int(sys.argv[3])
study = optuna.create_study(
    storage=storage(), study_name=name, load_if_exists=True, direction="minimize",
    sampler=optuna.samplers.TPESampler(seed=sum(map(ord, worker)), constant_liar=True),
    pruner=optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=2),
)


def objective(trial):
    x = trial.suggest_float("x", -10, 10)
    n = trial.suggest_int("n", 1, 64, log=True)
    kind = trial.suggest_categorical("kind", ["a", None, 2.5])
    trial.set_user_attr("worker", worker)
    loss = x * x + abs(n - 8) + (kind != "a")
    for step in range(6):
        trial.report(loss + 10 / (step + 1), step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return loss


study.optimize(objective, n_trials=trials)
