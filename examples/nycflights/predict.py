"""Asks the deployed model about every flight of May and compares with what happened.

Uses the standard library only: rows come from Falaj's API, predictions over the
Open Inference Protocol in JSON. Usage: predict.py DATASET (FALAJ_URL, FALAJ_TOKEN
and FALAJ_PROJECT in the environment).
"""

import json
import os
import sys
import urllib.request

URL, TOKEN, PROJECT = os.environ["FALAJ_URL"], os.environ["FALAJ_TOKEN"], os.environ["FALAJ_PROJECT"]
FEATURES = [
    "minute_of_day", "weekday", "distance",
    "weather__temp", "weather__wind_speed", "weather__precip", "weather__visib", "weather__humid",
    "plane__built", "plane__seats", "plane__engines",
    "carrier_delay__mean_delay", "carrier_delay__landings",
]


def post(path, body):
    request = urllib.request.Request(
        URL + path, json.dumps(body).encode(),
        {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json", "Falaj-Project": PROJECT},
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as e:
        sys.exit(f"{path}: {e.code} {e.read().decode()}")


def auc(pairs):
    """Area under the ROC curve by ranks, ties sharing their mean rank."""
    pairs = sorted(pairs)
    ranks, i = 0.0, 0
    while i < len(pairs):
        j = i
        while j < len(pairs) and pairs[j][0] == pairs[i][0]:
            j += 1
        ranks += sum(late for _, late in pairs[i:j]) * (i + j + 1) / 2
        i = j
    late = sum(l for _, l in pairs)
    return (ranks - late * (late + 1) / 2) / (late * (len(pairs) - late))


dataset = sys.argv[1]
columns = ", ".join(FEATURES)
pairs = []
for first in range(1, 32, 7):
    rows = post(f"/api/v1/projects/{PROJECT}/query", {
        "sql": f"SELECT {columns}, late FROM {dataset} WHERE departs >= TIMESTAMPTZ '2013-05-{first:02} 00:00:00+00'"
               f" AND departs < TIMESTAMPTZ '2013-05-{first:02} 00:00:00+00' + INTERVAL 7 DAY",
        "limit": 10000,
    })["rows"]
    for at in range(0, len(rows), 1000):
        part = rows[at:at + 1000]
        answer = post("/v2/models/delay/infer", {
            "inputs": [{"name": "X", "shape": [len(part), len(FEATURES)], "datatype": "FP32", "data": [r[:-1] for r in part]}],
            "outputs": [{"name": "probabilities"}],
        })
        probabilities = answer["outputs"][0]["data"]
        pairs += [(probabilities[2 * i + 1], int(r[-1])) for i, r in enumerate(part)]
    if sys.stderr.isatty():
        print(f"\r    May {min(first + 6, 31):2}: {len(pairs)} flights", end="", file=sys.stderr, flush=True)
if sys.stderr.isatty():
    print(file=sys.stderr)

late = sum(l for _, l in pairs) / len(pairs)
print(f"    {len(pairs)} flights in May, {late:.1%} late; AUC {auc(pairs):.3f}")
print("    calibration: predicted → happened")
pairs.sort()
for k in range(5):
    part = pairs[len(pairs) * k // 5:len(pairs) * (k + 1) // 5]
    said, was = sum(p for p, _ in part) / len(part), sum(l for _, l in part) / len(part)
    print(f"      {said:6.1%} → {was:6.1%}  {'█' * round(40 * was)}")
