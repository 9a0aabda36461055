"""Reads a server as pyarrow.flight is documented: ADDRESS TOKEN PROJECT."""

import json
import sys

import pyarrow
import pyarrow.flight as flight

address, token, project = sys.argv[1:]
client = flight.FlightClient(f"grpc://{address}")
options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode()), (b"falaj-project", project.encode())])

# A version by its path, whole.
info = client.get_flight_info(flight.FlightDescriptor.for_path("d"), options)
assert info.total_records == 50_000, info.total_records
table = client.do_get(info.endpoints[0].ticket, options).read_all()
assert table.schema == info.schema == client.get_schema(flight.FlightDescriptor.for_path("d"), options).schema
assert table.column("n").to_pylist() == list(range(50_000))
assert table.column("word")[4999].as_py() == "word 4999" and table.column("f")[5].as_py() is None

# Shards by a command; a stream that goes on.
parts = []
for index in range(3):
    command = {"dataset": "d@1", "columns": ["f", "n"], "shard": {"index": index, "count": 3}}
    info = client.get_flight_info(flight.FlightDescriptor.for_command(json.dumps(command)), options)
    ticket = json.loads(info.endpoints[0].ticket.ticket)
    reader = client.do_get(info.endpoints[0].ticket, options)
    first = reader.read_chunk().data
    reader.cancel()
    ticket["skip"] = first.num_rows
    rest = client.do_get(flight.Ticket(json.dumps(ticket)), options).read_all()
    assert first.num_rows + rest.num_rows == info.total_records
    parts += [pyarrow.Table.from_batches([first]), rest]
assert pyarrow.concat_tables(parts).equals(table.select(["f", "n"]).combine_chunks()) or (
    pyarrow.concat_tables(parts).column("n").to_pylist() == list(range(50_000)))

assert [json.loads(f.app_metadata)["dataset"] for f in client.list_flights(b"", options)] == ["d@1"]


def refused(kind: type, words: str, call) -> None:
    try:
        call()
    except kind as e:
        assert words in str(e), e
        return
    raise AssertionError(f"{words}: it was not refused")


ask = lambda name, o=options: client.get_flight_info(flight.FlightDescriptor.for_path(name), o)  # noqa: E731
refused(flight.FlightUnauthenticatedError, "", lambda: ask("d", flight.FlightCallOptions()))
refused(pyarrow.ArrowKeyError, "no version d@9", lambda: ask("d@9"))
refused(pyarrow.ArrowException, "is rejected", lambda: ask("bad"))

# Rows that are sent are a version of the dataset.
def put(name: str, table: pyarrow.Table) -> dict:
    writer, answer = client.do_put(flight.FlightDescriptor.for_path(name), table.schema, options)
    writer.write_table(table, max_chunksize=10_000)
    writer.done_writing()
    made = answer.read()  # None when it is refused, which close says
    writer.close()
    return json.loads(made.to_pybytes())


made = put("d", table.slice(100, 40_000))
assert made["dataset"] == "d@2" and made["rows"] == 40_000 and made["state"] == "accepted", made
info = client.get_flight_info(flight.FlightDescriptor.for_path("d"), options)
assert client.do_get(info.endpoints[0].ticket, options).read_all().column("n").to_pylist() == list(range(100, 40_100))
assert put("bad", table.slice(0, 3))["state"] == "rejected"
refused(pyarrow.ArrowKeyError, "nothing", lambda: put("nothing", table.slice(0, 1)))
