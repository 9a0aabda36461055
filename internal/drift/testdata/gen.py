"""Writes scipy.json and river.json beside it.

Run with scipy 1.17.1, numpy and river 0.26.1:  python gen.py
"""

import json
import pathlib
import random

import numpy as np
import scipy
import scipy.stats as st
from river import drift
from scipy.spatial.distance import jensenshannon

here = pathlib.Path(__file__).parent
rng = np.random.default_rng(7)


def rounded(a, digits=6):
    return [round(float(v), digits) for v in a]


def case(name, a, b):
    a, b = np.array(a), np.array(b)
    out = {"name": name, "ref": a.tolist(), "cur": b.tolist()}
    want = out["want"] = {}

    def put(key, r):
        want[key] = [float(r.statistic), float(r.pvalue)]

    n, m = len(a), len(b)
    # With equal values scipy's p-values of these do not hold.
    differ = len(set(a.tolist()) | set(b.tolist())) == n + m
    if differ:
        put("ks", st.ks_2samp(a, b, method="exact"))
        put("cramer_von_mises", st.cramervonmises_2samp(a, b, method="auto"))
    put("ks_asymptotic", st.ks_2samp(a, b, method="asymp"))
    put("mann_whitney", st.mannwhitneyu(a, b, method="asymptotic"))
    put("t_test", st.ttest_ind(a, b))
    put("epps_singleton", st.epps_singleton_2samp(a, b))
    r = st.anderson_ksamp([a, b], midrank=True) if scipy.__version__ < "1.17" else st.anderson_ksamp([a, b], variant="midrank")
    want["anderson_darling"] = [float(r.statistic), float(r.pvalue) if differ else None]
    want["wasserstein"] = [float(st.wasserstein_distance(a, b)), None]
    want["wasserstein_normed"] = [float(st.wasserstein_distance(a, b) / np.std(a)), None]
    want["energy"] = [float(st.energy_distance(a, b)), None]
    return out


samples = [
    case("Evidently's normal", st.norm.rvs(size=100, random_state=0), st.norm.rvs(size=100, random_state=1)),
    case("normal 30/40", rounded(rng.normal(0, 1, 30)), rounded(rng.normal(0.4, 1, 40))),
    case("normal 200/150", rounded(rng.normal(0, 1, 200)), rounded(rng.normal(0, 1.3, 150))),
    case("normal 1000/1000", rounded(rng.normal(0, 1, 1000), 5), rounded(rng.normal(0.05, 1, 1000), 5)),
    case("exponential 15/18", rounded(rng.exponential(1, 15)), rounded(rng.exponential(2, 18))),
    case("repeats 120/90", [float(v) for v in rng.integers(0, 8, 120)], [float(v) for v in rng.integers(0, 9, 90)]),
    case("long tail 60/60", rounded(np.exp(2 * rng.normal(0, 1, 60))), rounded(np.exp(2 * rng.normal(0.2, 1, 60)))),
]
counts = []
for name, a, b in [
    ("five", [30, 40, 10, 12, 8], [25, 35, 20, 15, 5]),
    ("three", [500, 300, 200], [480, 350, 170]),
    ("two", [60, 30], [45, 45]),
]:
    a, b = np.array(a, float), np.array(b, float)
    p, q = a / a.sum(), b / b.sum()
    h = st.chi2_contingency([a, b], correction=False)
    c = st.chisquare(b, a * b.sum() / a.sum())
    g = st.power_divergence(b, a * b.sum() / a.sum(), lambda_="log-likelihood")
    want = {
        "chi_square": [float(h.statistic), float(h.pvalue)],
        "chi_square_fit": [float(c.statistic), float(c.pvalue)],
        "g": [float(g.statistic), float(g.pvalue)],
        "psi": [float(np.sum((q - p) * np.log(q / p))), None],
        "kl": [float(st.entropy(p, q)), None],
        "jensen_shannon": [float(jensenshannon(p, q, base=2)), None],
        "hellinger": [float(np.sqrt(0.5 * np.sum((np.sqrt(p) - np.sqrt(q)) ** 2))), None],
        "l_infinity": [float(np.max(np.abs(p - q))), None],
    }
    if len(a) == 2:
        want["fisher"] = [None, float(st.fisher_exact([a, b]).pvalue)]
    counts.append({"name": name, "ref": a.tolist(), "cur": b.tolist(), "want": want})

laws = {
    "kolmogorov": [[n, d, float(st.kstwo.sf(d, n))] for n in (4, 10, 50, 140, 141, 300, 500) for d in (0.02, 0.05, 0.1, 0.2, 0.4, 0.6)],
    "ks_exact": [],
    "fisher": [[t, float(st.fisher_exact([t[:2], t[2:]]).pvalue)] for t in ([3, 1, 1, 3], [10, 0, 2, 8], [1000, 20, 900, 45], [5, 0, 5, 0])],
}
(here / "scipy.json").write_text(
    json.dumps({"scipy": scipy.__version__, "samples": samples, "counts": counts, "laws": laws}) + "\n"
)

r = random.Random(12345)
published = r.choices([0, 1], k=1000) + r.choices(range(4, 8), k=1000)
g = np.random.default_rng(3)
streams = {
    "published": published,
    "steps": rounded(np.concatenate([g.normal(m, 1, 700) for m in (0, 1, 0.4, 3)]), 4),
    "still": rounded(g.normal(0, 1, 3000), 4),
    "slope": rounded(np.linspace(0, 5, 2500) + g.normal(0, 1, 2500), 4),
}
out = {}
for name, values in streams.items():
    a, p = drift.ADWIN(), drift.PageHinkley()
    at, pt, widths = [], [], []
    for i, v in enumerate(values):
        a.update(v)
        p.update(v)
        if a.drift_detected:
            at.append(i)
            widths.append(int(a.width))
        if p.drift_detected:
            pt.append(i)
    out[name] = {"values": values, "adwin": at, "widths": widths, "page_hinkley": pt}
(here / "river.json").write_text(json.dumps({"river": "0.26.1", "streams": out}) + "\n")
for k, v in out.items():
    print(k, v["adwin"], v["widths"], v["page_hinkley"])
