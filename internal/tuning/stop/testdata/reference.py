"""Makes optuna.json beside it: what the pruners of Optuna 5.0 decide about trials that
run in turns. Usage: python reference.py"""

import json
import os
import random

import optuna
from optuna.pruners import MedianPruner, PercentilePruner, SuccessiveHalvingPruner

optuna.logging.set_verbosity(optuna.logging.ERROR)
STEPS, TRIALS, TOGETHER = 27, 40, 4
rules = {
    "median": ({"kind": "median"}, MedianPruner()),
    "median, late": (
        {"kind": "median", "startup_trials": 3, "warmup_steps": 4, "interval_steps": 5, "min_trials": 3},
        MedianPruner(n_startup_trials=3, n_warmup_steps=4, interval_steps=5, n_min_trials=3),
    ),
    "percentile": ({"kind": "percentile", "percentile": 25}, PercentilePruner(25)),
    "asha": ({"kind": "asha"}, SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)),
    "asha, late": (
        {"kind": "asha", "min_resource": 2, "reduction_factor": 2, "min_early_stopping_rate": 1},
        SuccessiveHalvingPruner(min_resource=2, reduction_factor=2, min_early_stopping_rate=1),
    ),
}
cases = []
for name, (rule, pruner) in rules.items():
    for direction in ("minimize", "maximize"):
        rng = random.Random(name + direction)
        study = optuna.create_study(direction=direction, pruner=pruner)
        running, reports = [], []
        while len(study.trials) < TRIALS or running:
            while len(running) < TOGETHER and len(study.trials) < TRIALS:
                running.append([study.ask(), 0, rng.uniform(0, 2)])
            entry = rng.choice(running)
            trial, step, bias = entry
            value = float("nan") if rng.random() < 0.03 else round(bias + rng.gauss(0, 0.3) - 0.02 * step, 3)
            trial.report(value, step)
            pruned = bool(trial.should_prune())
            reports.append([trial.number, step, None if value != value else value, pruned])
            entry[1] += rng.choice((1, 1, 1, 2))
            if pruned or entry[1] >= STEPS:
                study.tell(trial, None if pruned else bias, optuna.trial.TrialState.PRUNED if pruned else None)
                running.remove(entry)
        cases.append({"name": name, "rule": rule | {"direction": direction}, "last": STEPS, "reports": reports})
here = os.path.dirname(os.path.abspath(__file__))
with open(f"{here}/optuna.json", "w") as out:
    out.write("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")
