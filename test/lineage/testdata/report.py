"""Tells Falaj of runs by the unmodified OpenLineage client, in the ways that it has."""

import os
import uuid
from datetime import datetime, timezone

from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import Dataset, DatasetEvent, InputDataset, Job, JobEvent, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import column_lineage_dataset, nominal_time_run, schema_dataset, sql_job
from openlineage.client.transport.http import ApiKeyTokenProvider, HttpCompression, HttpConfig, HttpTransport

url, token, project = os.environ["FALAJ_URL"], os.environ["FALAJ_TOKEN"], os.environ["FALAJ_PROJECT"]


def client(token=token, **more):
    return OpenLineageClient(transport=HttpTransport(HttpConfig(url=url, auth=ApiKeyTokenProvider({"apiKey": token}), retry={"total": 0}, **more)))


def event(state, run, inputs=(), outputs=()):
    return RunEvent(
        eventType=state, eventTime=datetime.now(timezone.utc).isoformat(), producer="https://example.org/etl",
        run=Run(run, {"nominalTime": nominal_time_run.NominalTimeRunFacet("2026-01-01T00:00:00Z")}),
        job=Job("airflow", "nightly.load", {"sql": sql_job.SQLJobFacet("SELECT celsius AS temp FROM public.raw")}),
        inputs=list(inputs), outputs=list(outputs),
    )


run = str(uuid.uuid4())
raw = InputDataset("postgres://db:5432", "public.raw", {"schema": schema_dataset.SchemaDatasetFacet([schema_dataset.SchemaDatasetFacetFields("celsius", "float")])})
made = column_lineage_dataset.ColumnLineageDatasetFacet({"temp": column_lineage_dataset.Fields([
    column_lineage_dataset.InputField("postgres://db:5432", "public.raw", "celsius", [column_lineage_dataset.Transformation("DIRECT", "IDENTITY")]),
])})
weather = OutputDataset(f"falaj://{project}", "weather", {"columnLineage": made})

plain, packed = client(), client(compression=HttpCompression.GZIP)
plain.emit(event(RunState.START, run, [raw]))
packed.emit(event(RunState.RUNNING, run, [raw]))
done = event(RunState.COMPLETE, run, [raw], [weather])
for _ in range(3):  # the client repeats what it is not sure of
    packed.emit(done)
plain.emit(JobEvent(eventTime=done.eventTime, producer=done.producer, job=Job("airflow", "nightly.check"), inputs=[InputDataset(f"falaj://{project}", "weather")]))
plain.emit(DatasetEvent(eventTime=done.eventTime, producer=done.producer, dataset=Dataset("postgres://db:5432", "public.raw")))

# A token of several projects says which by a header.
client(os.environ["FALAJ_ADMIN"], custom_headers={"Falaj-Project": project}).emit(event(RunState.COMPLETE, str(uuid.uuid4())))

for bad, status in ((client("nobody"), 401), (client(os.environ["FALAJ_VIEWER"]), 403), (client(os.environ["FALAJ_ADMIN"]), 403)):
    try:
        bad.emit(event(RunState.START, str(uuid.uuid4())))
    except Exception as e:
        assert getattr(getattr(e, "response", None), "status_code", None) == status, e
    else:
        raise AssertionError(f"it was taken, and not refused with {status}")
