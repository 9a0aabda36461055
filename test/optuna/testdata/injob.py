"""A job that works on a study together with others."""
import falaj.optuna
import optuna


def objective(trial):
    x = trial.suggest_float("x", -3, 3)
    for step in range(3):
        trial.report((x - 1) ** 2 + 1 / (step + 1), step)
    return (x - 1) ** 2


study = optuna.create_study(storage=falaj.optuna.storage(), study_name="jobs", load_if_exists=True)
study.optimize(objective, n_trials=4)
