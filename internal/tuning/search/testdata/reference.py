"""Makes optuna.json beside it, and importance/testdata/optuna.json: what Optuna 5.0 says
of densities, hypervolumes' choices and importances. Usage: python reference.py"""

import functools
import json
import os
import warnings

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers._tpe.parzen_estimator import _ParzenEstimator, _ParzenEstimatorParameters
from optuna.samplers._tpe.sampler import _split_complete_trials_multi_objective, default_weights
from optuna.distributions import distribution_to_json

warnings.simplefilter("ignore")
optuna.logging.set_verbosity(optuna.logging.ERROR)
# Which of equal values is first differs between processors unless the sort is stable.
np.argsort = functools.partial(np.argsort, kind="stable")
here = os.path.dirname(os.path.abspath(__file__))
space = {
    "x": FloatDistribution(-3, 5),
    "lr": FloatDistribution(1e-5, 1, log=True),
    "drop": FloatDistribution(0, 0.9, step=0.1),
    "units": IntDistribution(1, 300, log=True),
    "layers": IntDistribution(1, 9, step=2),
    "act": CategoricalDistribution(["relu", "tanh", None, 1.5]),
}
rng = np.random.RandomState(1)


def draw():
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=rng.randint(1 << 30)))
    return study.ask(space).params


out = {"space": {k: json.loads(distribution_to_json(d)) for k, d in space.items()}, "densities": []}
for n in (0, 1, 2, 7, 60):
    rows = [draw() for _ in range(n)]
    points = [draw() for _ in range(5)]
    internal = lambda ps: {k: np.asarray([d.to_internal_repr(p[k]) for p in ps]) for k, d in space.items()}
    pe = _ParzenEstimator(internal(rows), space, _ParzenEstimatorParameters(1.0, True, False, default_weights, True))
    out["densities"].append({"rows": rows, "points": points, "log_pdf": pe.log_pdf(internal(points)).tolist()})

out["fronts"] = []
for objectives, n, k in ((2, 40, 9), (3, 60, 12), (2, 12, 11)):
    values = rng.rand(n, objectives).round(3) + 0.1
    study = optuna.create_study(directions=["minimize"] * objectives)
    for v in values:
        study.add_trial(optuna.trial.create_trial(values=v.tolist()))
    below, _ = _split_complete_trials_multi_objective(study.trials, study, k)
    out["fronts"].append({"values": values.tolist(), "k": k, "below": [t.number for t in below],
                          "front": [t.number for t in study.best_trials],
                          "volume": optuna._hypervolume.compute_hypervolume(values, np.full(objectives, 1.2))})


def bins(params):
    internal = {k: d.to_internal_repr(params[k]) for k, d in space.items()}
    return {"x": int((internal["x"] + 3) / 0.8), "lr": int(-np.log10(internal["lr"]) * 2), "drop": round(internal["drop"] * 10),
            "units": int(np.log2(internal["units"]) * 2), "layers": int(internal["layers"]), "act": int(internal["act"])}


def loss(p):
    return abs(p["x"] - 1) + abs(np.log10(p["lr"]) + 3) + p["drop"] + abs(np.log2(p["units"]) - 6) / 2 + abs(p["layers"] - 5) / 2 + (p["act"] != "relu")


history = [draw() for _ in range(80)]
study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=7))
for p in history:
    study.add_trial(optuna.trial.create_trial(value=loss(p), params=p, distributions=space))
counts = {k: {} for k in space}
for _ in range(3000):
    trial = study.ask(space)
    for k, b in bins(trial.params).items():
        counts[k][b] = counts[k].get(b, 0) + 1
    study.tell(trial, state=optuna.trial.TrialState.FAIL)
out["suggested"] = {"history": [{"params": p, "value": loss(p)} for p in history], "counts": counts}
json.dump(out, open(f"{here}/optuna.json", "w"), indent=1)

study = optuna.create_study(direction="maximize")
for i in range(120):
    p = draw()
    if p["act"] != "relu":
        del p["drop"]
    value = -abs(p["x"] - 1) - 0.3 * abs(np.log10(p["lr"]) + 3) + (p["act"] == "relu") + 0.01 * rng.randn()
    study.add_trial(optuna.trial.create_trial(value=value, params=p, distributions={k: space[k] for k in p}))
importance = optuna.importance.get_param_importances(study, evaluator=optuna.importance.PedAnovaImportanceEvaluator())
json.dump({"space": out["space"], "importance": importance,
           "trials": [{"params": t.params, "value": t.value} for t in study.trials]},
          open(f"{here}/../../importance/testdata/optuna.json", "w"), indent=1)
