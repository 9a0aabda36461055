"""Replays flights hour by hour, as they happened, against the deployed model.

A request carries what is known when a flight leaves: its keys and its schedule.
The features come from Falaj's online store as of that moment. Hours later, when
the flight has landed, its label is sent. Standard library only.

Usage: replay.py FROM TO [--stop-at promote|rollback] [--state FILE]
(dates; FALAJ_URL, FALAJ_TOKEN and FALAJ_PROJECT in the environment). It prints
what Falaj did by itself, and ends early when an act of that kind is done. With a
state file it goes on where it ended.
"""

import argparse
import heapq
import http.client
import json
import os
import sys
import threading
import time
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone

URL, TOKEN, PROJECT = os.environ["FALAJ_URL"], os.environ["FALAJ_TOKEN"], os.environ["FALAJ_PROJECT"]
NAME = "delay"
HOUR = timedelta(hours=1)
HEADERS = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json", "Falaj-Project": PROJECT}
local = threading.local()


def call(method, path, body=None, patience=120, missing=False):
    """A request over this thread's connection. A server that is away is awaited:
    the same request is sent again, under the same id. None is the answer to what
    may be missing and is."""
    text = None if body is None else json.dumps(body)
    until = time.monotonic() + patience
    while True:
        try:
            if getattr(local, "conn", None) is None:
                at = urllib.parse.urlsplit(URL)
                local.conn = http.client.HTTPConnection(at.hostname, at.port, timeout=60)
            local.conn.request(method, path, text, HEADERS)
            answer = local.conn.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException):
            if local.conn is not None:
                local.conn.close()
            local.conn = None
            if time.monotonic() > until:
                raise
            time.sleep(0.2)
            continue
        if answer.status in (429, 503) and time.monotonic() < until:
            time.sleep(0.2)
            continue
        if answer.status == 404 and missing:
            return None
        if answer.status >= 400:
            sys.exit(f"{method} {path}: {answer.status} {data.decode()}")
        return json.loads(data) if data else None


def instant(text):
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def flights(begin, end):
    """Flights that leave in [begin, end), by departure."""
    sql = f"""
      SELECT concat_ws('-', strftime(time_hour, '%Y%m%d%H'), carrier, flight, origin) AS id, origin, tailnum, carrier,
             time_hour + to_minutes(minute) AS departs, CAST(hour * 60 + minute AS DOUBLE), 
             CAST(isodow(make_date(year, month, day)) AS DOUBLE), CAST(distance AS DOUBLE),
             time_hour + to_minutes(CAST(minute + dep_delay + air_time AS BIGINT)) AS landed, arr_delay > 15
      FROM flights
      WHERE arr_delay IS NOT NULL AND tailnum IS NOT NULL AND air_time IS NOT NULL
        AND time_hour >= TIMESTAMPTZ '{begin:%Y-%m-%d %H:%M:%S}+00' AND time_hour < TIMESTAMPTZ '{end:%Y-%m-%d %H:%M:%S}+00'
      ORDER BY departs, id"""
    return call("POST", f"/api/v1/projects/{PROJECT}/query", {"sql": sql, "limit": 10000})["rows"]


def predict(row):
    key, origin, tailnum, carrier, departs, minute, weekday, distance = row[:8]
    texts = {"origin": origin, "tailnum": tailnum, "carrier": carrier}
    numbers = {"minute_of_day": minute, "weekday": weekday, "distance": distance}
    answer = call("POST", f"/v2/models/{NAME}/infer", {
        "id": key,
        "parameters": {"as_of": instant(departs).isoformat(), "route_key": key},
        "inputs": [{"name": k, "datatype": "BYTES", "shape": [1], "data": [v]} for k, v in texts.items()]
        + [{"name": k, "datatype": "FP32", "shape": [1], "data": [v]} for k, v in numbers.items()],
        "outputs": [{"name": "probabilities"}],
    })
    return answer["model_version"]


class Labels:
    """Labels wait here until their flights have landed."""

    def __init__(self, waiting):
        self.waiting = [tuple(w) for w in waiting]
        heapq.heapify(self.waiting)
        self.sent = 0

    def add(self, rows):
        for row in rows:
            heapq.heappush(self.waiting, (row[8], row[0], bool(row[9])))

    def send(self, now):
        part = []
        while self.waiting and instant(self.waiting[0][0]) <= now:
            at, key, late = heapq.heappop(self.waiting)
            part.append({"id": key, "value": late, "at": at})
        for i in range(0, len(part), 5000):
            answer = call("POST", f"/api/v1/projects/{PROJECT}/deployments/{NAME}/labels", {"labels": part[i:i + 5000]})
            if answer.get("unknown"):
                sys.exit(f"{answer['unknown']} labels are for predictions that were answered and are not there: {answer}")
        self.sent += len(part)


def lag(closed, last):
    """What of Falaj is behind the replay, in words; None when nothing is."""
    monitor = call("GET", f"/api/v1/projects/{PROJECT}/monitors/{NAME}")
    read = monitor.get("replayed")  # the watermark is that of live requests, which came before
    if not read or instant(read) < closed:
        return f"the monitor has read up to {read}, not {closed}. {monitor.get('problem', '')}"
    status = call("GET", f"/api/v1/projects/{PROJECT}/deployments/{NAME}/status")
    running = status.get("rollout")
    if not running or status["waiting"]:  # nothing is judged, or it says itself what it waits for
        return None
    judged = call("GET", f"/api/v1/projects/{PROJECT}/deployments/{NAME}/rollout", missing=True)
    if not judged or judged["rollout"] != running["id"]:
        return f"rollout {running['id']} is not judged yet"
    if judged.get("newest") and instant(judged["newest"]) < last:
        return f"the judge has read up to {judged['newest']}, not {last}. {judged.get('problem', '')}"
    if judged["concluded"] and judged["decision"]["outcome"] in ("promote", "rollback"):
        return f"rollout {running['id']} was decided and is not ended: {judged['decision']['reason']}"
    return None


def settle(closed, last):
    """Waits until the monitor has closed the week's window and the judge has read what
    was answered: a week of flights passes here in seconds, and both look every other
    second."""
    until = time.monotonic() + 300
    while why := lag(closed, last):
        if time.monotonic() > until:
            sys.exit(why)
        time.sleep(0.1)


class Acts:
    """What Falaj did by itself, told once."""

    def __init__(self, seen):
        self.seen = set(seen)

    def look(self, day):
        """Waits while something is being done or a model is being trained, so that
        virtual time stands still meanwhile; returns the kinds of acts that were done."""
        kinds = []
        until = time.monotonic() + 30 * 60  # a job takes up to 10 minutes, an act is tried again for 15
        while True:
            acts = call("GET", f"/api/v1/projects/{PROJECT}/deployments/{NAME}/status").get("acts") or []
            for act in reversed(acts):
                if act["outcome"] in ("done", "failed") and act["id"] not in self.seen:
                    self.seen.add(act["id"])
                    kinds.append(act["kind"])
                    say(f"{day:%b %d}: {act['kind']} {act['outcome']}: {act['reason']}" + (f" → {act['result']}" if act.get("result") else ""))
            tried = " ".join(a["reason"] for a in acts if a["kind"] == "canary" and a["outcome"] != "claimed")
            trains = [a for a in acts if a["kind"] == "retrain" and a["outcome"] == "done" and a["result"] not in tried]
            open_ = [f"{a['kind']}: {a['reason']}" for a in acts if a["outcome"] == "claimed"] + [f"job {a['result']} has not ended" for a in trains]
            if not open_:
                return kinds
            if time.monotonic() > until:
                sys.exit("not done within 30 minutes: " + "; ".join(open_))
            time.sleep(0.2)


def say(text):
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    print(f"    {text}", flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("begin")
    p.add_argument("end")
    p.add_argument("--stop-at", choices=["promote", "rollback"])
    p.add_argument("--state")
    a = p.parse_args()
    state = {"at": a.begin + "T00:00:00+00:00", "waiting": [], "seen": [], "sent": 0}
    if a.state and os.path.exists(a.state):
        with open(a.state) as f:
            state = json.load(f)
    now, end = instant(state["at"]), datetime.fromisoformat(a.end).replace(tzinfo=timezone.utc)
    labels, acts, versions, asked = Labels(state["waiting"]), Acts(state["seen"]), {}, 0
    began, kinds = time.monotonic(), []
    rows, loaded, last = [], now, now
    with ThreadPoolExecutor(int(os.environ.get("REPLAY_THREADS", "3"))) as pool:
        while now < end and a.stop_at not in kinds:
            if now >= loaded:
                loaded = min(now + timedelta(days=7), end)
                rows = flights(now, loaded)
                rows.reverse()
            hour = []
            while rows and instant(rows[-1][4]) < now + HOUR:
                hour.append(rows.pop())
            for version in pool.map(predict, hour, chunksize=8):
                versions[version] = versions.get(version, 0) + 1
            asked += len(hour)
            labels.add(hour)
            now += HOUR
            labels.send(now)
            if hour:
                last = instant(hour[-1][4])
            if now.weekday() == 0 and now.hour == 14:  # the week's window is closed
                settle(now.replace(hour=6), last)  # the monitor's lateness
            if now.hour in (0, 14):
                kinds = acts.look(now)
                if sys.stderr.isatty():
                    rate = asked / (time.monotonic() - began)
                    print(f"\r\033[K    {now:%b %d}  {asked} flights, {rate:.0f}/s", end="", file=sys.stderr, flush=True)
    by = ", ".join(f"version {v}: {n}" for v, n in sorted(versions.items()))
    say(f"{asked} flights until {now:%b %d}, answered by {by}; {labels.sent} labels")
    if a.state:
        with open(a.state, "w") as f:
            json.dump({"at": now.isoformat(), "waiting": labels.waiting, "seen": sorted(acts.seen)}, f)
    if a.stop_at and a.stop_at not in kinds:
        sys.exit(f"no {a.stop_at} until {now:%b %d}")


main()
