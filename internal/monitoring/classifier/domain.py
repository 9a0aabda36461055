"""Tells the rows of a window from the rows of a baseline, if it can.

Falaj runs this as a job. The inputs are two directories of Parquet files and
what to do with them as JSON in the first argument; the result is domain.json in
the output directory, and metrics of the run. When it cannot tell, domain.json
has an "error" for people and the exit code is 1.
"""

import glob
import json
import os
import re
import sys
import urllib.request
from datetime import datetime, timezone

FOLDS = 5
CATEGORIES = 254  # of a column; the rest are one more
WRITTEN = 100  # features of domain.json and of the metrics


class Cannot(Exception):
    """Why there is no result, for people."""


def finish(result, code):
    path = os.path.join(os.environ["FALAJ_OUTPUT_DIR"], "domain.json")
    with open(path + ".tmp", "w", encoding="utf-8") as f:
        json.dump(result, f, allow_nan=False)
    os.replace(path + ".tmp", path)
    sys.exit(code)


def sample(directory, columns, most, rng):
    """Reads at most `most` rows, chosen with equal chances, as lists of arrays."""
    files = sorted(glob.glob(os.path.join(directory, "**", "*.parquet"), recursive=True))
    counts = [pq.ParquetFile(f).metadata.num_rows for f in files]
    total = sum(counts)
    chosen = np.arange(total) if total <= most else np.sort(rng.choice(total, most, replace=False))
    parts, before = [], 0
    for f, count in zip(files, counts):
        here = chosen[(chosen >= before) & (chosen < before + count)] - before
        before += count
        at = 0
        if len(here) == 0:
            continue
        for batch in pq.ParquetFile(f).iter_batches(batch_size=65536, columns=columns):
            take = here[(here >= at) & (here < at + batch.num_rows)] - at
            at += batch.num_rows
            if len(take):
                parts.append(pa.Table.from_batches([batch]).take(pa.array(take)))
    if not parts:
        raise Cannot("there are no rows")
    return pa.concat_tables(parts), total


def numbers(values, otherwise):
    """What a model sees of a column: 32-bit floats, a default where it is null."""
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.timestamp("us")).cast(pa.int64())
        seconds = values.to_numpy(zero_copy_only=False).astype(np.float64) / 1e6
    else:
        seconds = values.cast(pa.float64()).to_numpy(zero_copy_only=False).astype(np.float64)
    seconds = np.where(np.isnan(seconds), np.nan if otherwise is None else otherwise, seconds)
    most = np.finfo(np.float32).max
    return np.clip(seconds, -most, most).astype(np.float32)


def categories(values, known):
    """Places among the known categories; an empty text is missing."""
    return np.array([np.nan if not v else known.get(str(v), len(known)) for v in values.to_pylist()], dtype=np.float32)


def matrix(both, columns):
    """The rows of both sides below each other, and which columns are categories."""
    out, categorical = [], []
    for c in columns:
        sides = [t[c["column"]].combine_chunks() for t in both]
        if c.get("text"):
            counts = {}
            for side in sides:
                for v in side.to_pylist():
                    if v:
                        counts[str(v)] = counts.get(str(v), 0) + 1
            common = sorted(counts, key=lambda v: (-counts[v], v))[:CATEGORIES]
            known = {v: i for i, v in enumerate(common)}
            out.append(np.concatenate([categories(s, known) for s in sides]))
        else:
            out.append(np.concatenate([numbers(s, c.get("otherwise")) for s in sides]))
        categorical.append(bool(c.get("text")))
    return np.column_stack(out), np.array(categorical)


def midranks(x):
    """Ranks from 1; equal values have the mean of theirs."""
    _, back, counts = np.unique(x, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2.0)[back]


def area(y, score):
    """The area under the ROC curve with its 95 % interval: DeLong, DeLong and
    Clarke-Pearson (1988), on the logit scale."""
    pos, neg = score[y == 1], score[y == 0]
    m, n = len(pos), len(neg)
    every = midranks(np.concatenate([pos, neg]))
    auc = (every[:m].sum() - m * (m + 1) / 2.0) / (m * n)
    above = (every[:m] - midranks(pos)) / n
    below = 1.0 - (every[m:] - midranks(neg)) / m
    deviation = np.sqrt(above.var(ddof=1) / m + below.var(ddof=1) / n)
    if auc <= 0 or auc >= 1 or deviation == 0:
        # All pairs agree, which says as much as so many independent pairs.
        edge = 1 - 0.025 ** (1 / min(m, n))
        return auc, max(0.0, auc - edge), min(1.0, auc + edge)
    logit, width = np.log(auc / (1 - auc)), 1.959963984540054 * deviation / (auc * (1 - auc))
    return auc, 1 / (1 + np.exp(-(logit - width))), 1 / (1 + np.exp(-(logit + width)))


def chance(y, score, fold, permutations, rng):
    """The chance that scores tell the sides apart as well where there is no
    difference. Within a fold, what was held out is independent of the model: lots
    drawn over its rows give an exact p-value. The folds' values depend on each
    other; twice their mean is valid whatever the dependence (Vovk and Wang, 2020)."""
    values = []
    for k in range(FOLDS):
        rank, m = midranks(score[fold == k]), int((y[fold == k] == 1).sum())
        found = rank[y[fold == k] == 1].sum() - 1e-9
        hits = sum(rng.permutation(rank)[:m].sum() >= found for _ in range(permutations))
        values.append((1 + hits) / (1 + permutations))
    return min(1.0, 2 * float(np.mean(values)))


def log_metrics(metrics):
    now = int(datetime.now(timezone.utc).timestamp() * 1000)
    body = {
        "run_id": os.environ["MLFLOW_RUN_ID"],
        "metrics": [{"key": k, "value": v, "timestamp": now, "step": 0} for k, v in metrics.items()],
    }
    request = urllib.request.Request(
        os.environ["MLFLOW_TRACKING_URI"].rstrip("/") + "/api/2.0/mlflow/runs/log-batch",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["MLFLOW_TRACKING_TOKEN"]},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()


def classify(both, columns, todo):
    rng = np.random.default_rng(todo["seed"])
    x, categorical = matrix(both, columns)
    y = np.repeat([0, 1], [both[0].num_rows, both[1].num_rows])
    score, fold = np.zeros(len(y)), np.zeros(len(y), dtype=int)
    drops = np.zeros((FOLDS, x.shape[1]))
    split = StratifiedKFold(FOLDS, shuffle=True, random_state=todo["seed"])
    for k, (train, held) in enumerate(split.split(x, y)):
        # A column without any value cannot be binned; as a constant, it can.
        empty = np.isnan(x[train]).all(axis=0)
        x[:, empty] = np.where(np.isnan(x[:, empty]), 0, x[:, empty])
        model = HistGradientBoostingClassifier(
            max_iter=100, learning_rate=0.1, max_leaf_nodes=15, min_samples_leaf=20, l2_regularization=1.0,
            early_stopping=False, categorical_features=categorical, random_state=todo["seed"],
        )
        model.fit(x[train], y[train])
        fold[held] = k
        score[held] = model.predict_proba(x[held])[:, 1]
        whole = area(y[held], score[held])[0]
        for j in range(x.shape[1]):
            shuffled = x[held].copy()
            shuffled[:, j] = rng.permutation(shuffled[:, j])
            drops[k, j] = whole - area(y[held], model.predict_proba(shuffled)[:, 1])[0]
        print(f"fold {k + 1} of {FOLDS}: area {whole:.4f}", flush=True)
    auc, low, high = area(y, score)
    mean, deviation = drops.mean(axis=0), drops.std(axis=0, ddof=1)
    order = np.argsort(-mean, kind="stable")[:WRITTEN]
    return {
        "auc": float(auc), "low": float(low), "high": float(high),
        "p_value": chance(y, score, fold, todo["permutations"], rng),
        "features": [{"name": columns[j]["name"], "importance": float(mean[j]), "deviation": float(deviation[j])} for j in order],
    }


def main():
    todo = json.loads(sys.argv[1])
    names = [c["column"] for c in todo["columns"]]
    rng = np.random.default_rng(todo["seed"])
    both, rows = [], []
    for side in ("baseline", "window"):
        table, total = sample(os.environ["FALAJ_DATA_" + side.upper()], names, todo["rows"], rng)
        both.append(table)
        rows.append(total)
        print(f"{side}: {total} rows, {table.num_rows} of them looked at", flush=True)
        if table.num_rows < todo["minimum"]:
            raise Cannot(f"the {side} has {table.num_rows} rows; {todo['minimum']} are needed")
    result = classify(both, todo["columns"], todo)
    result |= {
        "rows": rows, "sampled": [t.num_rows for t in both], "seed": todo["seed"], "permutations": todo["permutations"],
        "versions": {"scikit-learn": sklearn.__version__, "numpy": np.__version__},
    }
    print("domain_auc {auc:.4f} [{low:.4f}, {high:.4f}], p = {p_value:.4g}".format(**result), flush=True)
    metrics = {"domain_auc": result["auc"], "domain_auc_low": result["low"], "domain_auc_high": result["high"], "domain_p_value": result["p_value"]}
    for f in result["features"]:
        metrics["importance/" + re.sub(r"[^A-Za-z0-9_. -]", "_", f["name"])] = f["importance"]
    log_metrics(metrics)
    finish(result, 0)


if __name__ == "__main__":
    try:
        import numpy as np
        import pyarrow as pa
        import pyarrow.parquet as pq
        import sklearn
        from sklearn.ensemble import HistGradientBoostingClassifier
        from sklearn.model_selection import StratifiedKFold
    except ImportError as e:
        print(e, file=sys.stderr)
        finish({"error": f"the environment has no {e.name or 'scikit-learn'}; a domain classifier needs scikit-learn and pyarrow"}, 1)
    try:
        main()
    except Cannot as e:
        print(e, file=sys.stderr)
        finish({"error": str(e)}, 1)
