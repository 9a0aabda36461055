"""Writes sklearn.json beside it.

Run with scikit-learn 1.9.1, scipy 1.17.1 and numpy:  python gen.py
"""

import json
import pathlib

import numpy as np
import scipy.stats as st
import sklearn
import sklearn.metrics as sk
from sklearn.isotonic import IsotonicRegression

rng = np.random.default_rng(11)


def delong(y, s):
    """Variance of the AUC, straight from the definition."""
    p, n = s[y == 1], s[y == 0]
    psi = (p[:, None] > n[None, :]) + 0.5 * (p[:, None] == n[None, :])
    return float(psi.mean(1).var(ddof=1) / len(p) + psi.mean(0).var(ddof=1) / len(n))


def wilson(k, n):
    ci = st.binomtest(int(k), int(n)).proportion_ci(0.95, method="wilson")
    return [float(ci.low), float(ci.high)]


def mean_ci(v):
    h = st.t.ppf(0.975, len(v) - 1) * st.sem(v)
    return [float(v.mean() - h), float(v.mean() + h)]


def classification(name, s, y, t):
    s, y = np.round(np.array(s), 4), np.array(y).astype(int)
    c = (s >= t).astype(int)
    tn, fp, fn, tp = (int(v) for v in sk.confusion_matrix(y, c, labels=[0, 1]).ravel())
    eps = np.finfo(float).eps
    q = np.clip(s, eps, 1 - eps)
    loss = np.where(y == 1, -np.log(q), -np.log1p(-q))
    bins = np.minimum((s * 10).astype(int), 9)
    ece = sum(abs(s[bins == b].sum() - y[bins == b].sum()) for b in range(10)) / len(s)
    auc, se = sk.roc_auc_score(y, s), np.sqrt(delong(y, s))
    logit = np.log(auc / (1 - auc))
    h = st.norm.ppf(0.975) * se / (auc * (1 - auc))
    want = {
        "auc": [auc, 1 / (1 + np.exp(h - logit)), 1 / (1 + np.exp(-h - logit))],
        "log_loss": [sk.log_loss(y, s), *mean_ci(loss)],
        "brier": [sk.brier_score_loss(y, s), *mean_ci((s - y) ** 2)],
        "accuracy": [sk.accuracy_score(y, c), *wilson(tp + tn, len(y))],
        "precision": [sk.precision_score(y, c), *wilson(tp, tp + fp)],
        "recall": [sk.recall_score(y, c), *wilson(tp, tp + fn)],
        "f1": [sk.f1_score(y, c), *[2 * j / (1 + j) for j in wilson(tp, tp + fp + fn)]],
        "ece": [float(ece), None, None],
    }
    want = {k: [None if x is None else float(x) for x in v] for k, v in want.items()}
    iso = IsotonicRegression(out_of_bounds="clip").fit(s, y)
    at = [0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95]
    return {
        "name": name, "threshold": t, "scores": s.tolist(), "labels": y.tolist(),
        "confusion": [tp, fp, fn, tn], "want": want,
        "isotonic": [[a, float(iso.predict([a])[0])] for a in at],
    }


def regression(name, p, y):
    p, y = np.round(np.array(p), 4), np.round(np.array(y), 4)
    e = p - y
    mse = mean_ci(e**2)
    want = {
        "mae": [sk.mean_absolute_error(y, p), *mean_ci(np.abs(e))],
        "rmse": [np.sqrt(sk.mean_squared_error(y, p)), np.sqrt(max(0, mse[0])), np.sqrt(mse[1])],
        "r2": [sk.r2_score(y, p), None, None],
        "bias": [e.mean(), *mean_ci(e)],
    }
    boot = [sk.r2_score(y[i], p[i]) for i in (rng.integers(0, len(y), len(y)) for _ in range(4000))]
    return {
        "name": name, "predictions": p.tolist(), "labels": y.tolist(),
        "want": {k: [None if x is None else float(x) for x in v] for k, v in want.items()},
        "r2_bootstrap": [float(v) for v in np.percentile(boot, [2.5, 97.5])],
    }


def drawn(n, a, b):
    s = rng.beta(a, b, n)
    return s, rng.random(n) < s


s, y = drawn(500, 1, 2)
s2, y2 = drawn(300, 2, 2)
classes = [
    classification("calibrated", s, y, 0.5),
    classification("overconfident", np.clip(s2 * 1.6 - 0.3, 0, 1), y2, 0.4),
    classification("few scores", np.round(rng.random(200), 1), rng.random(200) < 0.3, 0.5),
]
x = rng.normal(10, 4, 400)
numbers = [
    regression("linear", x, x + rng.normal(0.5, 2, 400)),
    regression("far from zero", 1e6 + x, 1e6 + x + rng.normal(0, 1, 400)),
    regression("long tail", np.exp(x / 6), np.exp(x / 6 + rng.normal(0, 0.4, 400))),
]
here = pathlib.Path(__file__).parent
(here / "sklearn.json").write_text(
    json.dumps({"sklearn": sklearn.__version__, "classification": classes, "regression": numbers}) + "\n"
)
