"""Reads events, a line each, into the classes of the OpenLineage client: they refuse what the specification does not have."""

import importlib
import json
import pkgutil
import re
import sys

import attr
from openlineage.client import generated
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState

facets = {}
for m in pkgutil.iter_modules(generated.__path__):
    module = importlib.import_module(f"openlineage.client.generated.{m.name}")
    for c in vars(module).values():
        if isinstance(c, type) and attr.has(c) and hasattr(c, "_get_schema"):
            facets[c.__name__] = c


def facet(f):
    assert f["_producer"].startswith("https://"), f
    version, name = re.fullmatch(r"https://openlineage.io/spec/facets/(\d+-\d+-\d+)/\w+\.json#/\$defs/(\w+)", f["_schemaURL"]).groups()
    c = facets[name]
    known = {a.name.lstrip("_") for a in attr.fields(c)}
    fields = {k: v for k, v in f.items() if not k.startswith("_")}
    assert set(fields) <= known, f"{name} has no {set(fields) - known}"
    c(**fields)  # what is missing raises
    # Of the client's version of the facet or an older one of the same form.
    assert version.split("-")[0] <= c._get_schema().split("/")[5].split("-")[0], f
    return c


def all_facets(of):
    return {k: facet(v) for k, v in (of or {}).items()}


for line in sys.stdin:
    e = json.loads(line)
    assert e["schemaURL"] == "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
    RunEvent(
        eventType=RunState(e["eventType"]), eventTime=e["eventTime"], producer=e["producer"],
        run=Run(e["run"]["runId"]), job=Job(e["job"]["namespace"], e["job"]["name"]),
        inputs=[InputDataset(d["namespace"], d["name"]) for d in e.get("inputs", [])],
        outputs=[OutputDataset(d["namespace"], d["name"]) for d in e.get("outputs", [])],
    )
    all_facets(e["run"].get("facets"))
    all_facets(e["job"].get("facets"))
    for d in e.get("inputs", []) + e.get("outputs", []):
        for kind in ("facets", "inputFacets", "outputFacets"):
            all_facets(d.get(kind))
print("all right")
