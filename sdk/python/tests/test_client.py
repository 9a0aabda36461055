from __future__ import annotations

import math
import os
import threading
import unittest
from datetime import datetime, timezone
from unittest import mock

import falaj
from tests.fake import Asked, Answer, serve

MODEL = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [-1, 2]}], "outputs": []}


class ClientTest(unittest.TestCase):
    def setUp(self) -> None:
        context = serve()
        self.server = context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)
        self.client = falaj.Client(self.server.url + "/", "fjt_secret", "nyc", timeout=30)

    def refused(self, status: int, content: object) -> falaj.Error:
        self.server.answers["GET /x"] = (status, content)
        with self.assertRaises(falaj.Error) as caught:
            self.client.request("GET", "/x")
        return caught.exception

    def test_environment(self) -> None:
        env = {"FALAJ_URL": self.server.url, "FALAJ_TOKEN": "t", "FALAJ_PROJECT": "p"}
        self.server.answers["GET /x"] = (200, {"a": 1})
        with mock.patch.dict(os.environ, env):
            self.assertEqual(falaj.Client().request("GET", "/x"), {"a": 1})
        headers = self.server.asked[0].headers
        self.assertEqual(headers["Authorization"], "Bearer t")
        self.assertEqual(headers["Falaj-Project"], "p")

    def test_token_is_not_shown(self) -> None:
        self.assertNotIn("secret", repr(self.client))

    def test_proxies_are_not_asked_for_this_machine(self) -> None:
        self.server.answers["GET /x"] = (200, {})
        with mock.patch.dict(os.environ, {"http_proxy": "http://127.0.0.1:1"}):
            self.assertEqual(falaj.Client(self.server.url, "t").request("GET", "/x"), {})

    def test_redirects_are_not_followed(self) -> None:
        self.refused(302, {})
        self.assertEqual([a.path for a in self.server.asked], ["/x"])

    def test_problem(self) -> None:
        e = self.refused(409, {"kind": "conflict", "detail": "it is there", "hint": "Take another name."})
        self.assertEqual((e.kind, e.detail, e.hint, e.status), ("conflict", "it is there", "Take another name.", 409))
        self.assertEqual(str(e), "it is there → Take another name.")

    def test_inference_error(self) -> None:
        e = self.refused(404, {"error": "no model"})
        self.assertEqual((e.kind, e.detail, e.status), ("not_found", "no model", 404))

    def test_not_ours(self) -> None:
        self.assertEqual(self.refused(503, b"<html>").kind, "unavailable")
        self.assertEqual(self.refused(418, b"[]").kind, "internal")
        self.assertEqual(self.refused(200, b"<html>").kind, "internal")

    def test_no_server(self) -> None:
        with self.assertRaises(falaj.Error) as caught:
            falaj.Client("http://127.0.0.1:1", "t").request("GET", "/x")
        self.assertEqual(caught.exception.kind, "unavailable")

    def test_timeout(self) -> None:
        release = threading.Event()
        self.addCleanup(release.set)

        def hang(_: Asked) -> Answer:
            release.wait(60)
            return 200, {}

        self.server.answers["GET /x"] = hang
        with self.assertRaises(falaj.Error) as caught:
            falaj.Client(self.server.url, "t", timeout=0.2).request("GET", "/x")
        self.assertEqual(caught.exception.kind, "timeout")

    def test_wrong_use(self) -> None:
        with mock.patch.dict(os.environ, clear=True):
            for make, kind in (
                (lambda: falaj.Client("ftp://x", "t"), "invalid"),
                (lambda: falaj.Client(self.server.url).request("GET", "/x"), "unauthenticated"),
                (lambda: falaj.Client(self.server.url, "t").query("SELECT 1"), "invalid"),
                (lambda: self.client.preview(".."), "invalid"),
                (lambda: falaj.Client("https://127.0.0.1:1", "t", ca="/nonexistent"), "invalid"),
            ):
                with self.assertRaises(falaj.Error) as caught:
                    make()
                self.assertEqual(caught.exception.kind, kind)
        self.assertEqual(self.server.asked, [])

    def test_query(self) -> None:
        self.server.answers["POST /api/v1/projects/nyc/query"] = (
            200, {"columns": ["n", "f", "s"], "rows": [[1, "NaN", "NaN"], [None, 2.5, "x"], [3, "-Inf", None]]},
        )
        found = self.client.query("SELECT 1", {"w": "weather@1"}, limit=7)
        self.assertEqual(self.server.asked[0].json(), {"sql": "SELECT 1", "limit": 7, "inputs": {"w": "weather@1"}})
        self.assertEqual(found.columns, ("n", "f", "s"))
        self.assertTrue(math.isnan(found.rows[0][1]))
        self.assertEqual(found.rows[2][1], -math.inf)
        self.assertEqual([row["s"] for row in found.dicts()], ["NaN", "x", None])

    def test_rows_are_not_cut_in_silence(self) -> None:
        self.server.answers["POST /api/v1/projects/nyc/query"] = (200, {"columns": ["n"], "rows": [[1]], "truncated": True})
        with self.assertRaises(falaj.Error) as caught:
            self.client.query("SELECT 1")
        self.assertEqual(caught.exception.kind, "too_large")
        self.assertEqual(self.server.asked[0].json()["limit"], 10_000)
        self.assertTrue(self.client.query("SELECT 1", limit=1).truncated)

    def test_names_are_quoted(self) -> None:
        with self.assertRaises(falaj.Error):
            self.client.preview("../x?y")
        self.assertEqual(self.server.asked[0].path, "/api/v1/projects/nyc/datasets/..%2Fx%3Fy/preview?rows=20")

    def test_apply(self) -> None:
        self.server.answers["POST /api/v1/apply?project=nyc&dry_run=true"] = (200, {"items": [{"kind": "Job"}]})
        self.assertEqual(self.client.apply("kind: Job", dry_run=True), [{"kind": "Job"}])
        self.assertEqual(self.server.asked[0].body, b"kind: Job")
        self.assertEqual(self.server.asked[0].headers["Content-Type"], "application/yaml")

    def test_predict(self) -> None:
        self.server.answers["GET /v2/models/delay"] = (200, MODEL)
        self.server.answers["POST /v2/models/delay/infer"] = (200, {"outputs": [
            {"name": "p", "datatype": "FP32", "shape": [2, 2], "data": [0.1, 0.9, None, 0.5]},
            {"name": "label", "datatype": "INT64", "shape": [2], "data": [1, 0]},
        ]})
        answer = self.client.predict("delay", {"X": [[1, math.nan], [None, 4]]}, ["p", "label"])
        self.assertEqual(answer, {"p": [[0.1, 0.9], [None, 0.5]], "label": [1, 0]})
        self.assertEqual(self.server.asked[1].json(), {
            "inputs": [{"name": "X", "shape": [2, 2], "datatype": "FP32", "data": [1, None, None, 4]}],
            "outputs": [{"name": "p"}, {"name": "label"}],
        })

    def test_predict_bytes(self) -> None:
        self.server.answers["GET /v2/models/delay"] = (200, {"inputs": [{"name": "image", "datatype": "BYTES", "shape": [-1]}]})
        self.server.answers["POST /v2/models/delay/infer"] = (200, {"outputs": [
            {"name": "mask", "datatype": "BYTES", "shape": [2], "parameters": {"content_type": "base64"}, "data": ["/9j/", ""]},
        ]})
        self.assertEqual(self.client.predict("delay", {"image": [b"\xff\xd8\xff", "text"]}), {"mask": [b"\xff\xd8\xff", b""]})
        self.assertEqual(self.server.asked[1].json()["inputs"], [
            {"name": "image", "shape": [2], "datatype": "BYTES", "data": ["/9j/", "dGV4dA=="], "parameters": {"content_type": "base64"}},
        ])

    def test_predict_arrays(self) -> None:
        class Array:
            def tolist(self) -> list[list[float]]:
                return [[1.0, 2.0]]

        self.server.answers["GET /v2/models/delay"] = (200, MODEL)
        self.server.answers["POST /v2/models/delay/infer"] = (200, {"outputs": []})
        self.client.predict("delay", {"X": Array()})
        self.assertEqual(self.server.asked[1].json()["inputs"][0]["shape"], [1, 2])

    def test_predict_wrong_inputs(self) -> None:
        self.server.answers["GET /v2/models/delay"] = (200, MODEL)
        for inputs in ({"Y": [object()]}, {"Y": ["a", 1]}, {"X": [[1], [2, 3]]}, {"X": [[1], 2]}, {"X": 5}, {"X": [[math.inf, 1]]}, {"X": [[object()]]}):
            with self.assertRaises(falaj.Error) as caught:
                self.client.predict("delay", inputs)
            self.assertEqual(caught.exception.kind, "invalid", inputs)
        self.assertEqual({a.method for a in self.server.asked}, {"GET"})

    def test_predict_by_keys(self) -> None:
        self.server.answers["GET /v2/models/delay"] = (200, MODEL)
        self.server.answers["POST /v2/models/delay/infer"] = (200, {
            "id": "prd_1", "model_version": "2", "outputs": [{"name": "p", "datatype": "FP32", "shape": [1], "data": [0.5]}],
        })
        answer = self.client.predict(
            "delay", {"origin": ["JFK"], "seat": [7], "distance": [1020.5], "gap": [None], "first": [True]},
            as_of=datetime(2013, 7, 4, 12, tzinfo=timezone.utc), id="mine", route_key="k",
        )
        self.assertEqual((answer, answer.id, answer.version), ({"p": [0.5]}, "prd_1", "2"))
        sent = self.server.asked[1].json()
        self.assertEqual([i["datatype"] for i in sent["inputs"]], ["BYTES", "INT64", "FP64", "FP64", "BOOL"])
        self.assertEqual(sent["parameters"], {"as_of": "2013-07-04T12:00:00+00:00", "route_key": "k"})
        self.assertEqual(sent["id"], "mine")
        with self.assertRaises(falaj.Error) as caught:
            self.client.predict("delay", {"origin": ["JFK"]}, as_of=datetime(2013, 7, 4))
        self.assertEqual(caught.exception.kind, "invalid")

    def test_label(self) -> None:
        path = "/api/v1/projects/nyc/deployments/delay/labels"

        def answer(asked: Asked) -> Answer:
            return 200, {"results": [{"id": entry["id"], "status": "duplicate" if entry["id"] == "a" else "accepted"} for entry in asked.json()["labels"]]}

        self.server.answers["POST " + path] = answer
        said = self.client.label("delay", {"a": True, "b": [1, 0.5]}, at="2013-07-04T20:00:00Z")
        self.assertEqual(self.server.asked[0].json(), {"labels": [
            {"id": "a", "value": True, "at": "2013-07-04T20:00:00Z"}, {"id": "b", "values": [1, 0.5], "at": "2013-07-04T20:00:00Z"},
        ]})
        self.assertEqual((said.statuses, said.counts), ({"a": "duplicate", "b": "accepted"}, {"duplicate": 1, "accepted": 1}))
        self.client.label("delay", {"a": [True, None, math.nan], "b": ["cat", None]})
        self.assertEqual(self.server.asked.pop().json(), {"labels": [{"id": "a", "values": [True, None, None]}, {"id": "b", "values": ["cat", None]}]})
        said = self.client.label("delay", {str(i): i for i in range(5001)})
        self.assertEqual([len(a.json()["labels"]) for a in self.server.asked[1:]], [5000, 1])
        self.assertEqual((said.counts, self.client.label("delay", {}).counts), ({"accepted": 5001}, {}))
        with self.assertRaises(falaj.Error):
            self.client.label("delay", {"a": math.nan})

    def test_advice(self) -> None:
        self.server.answers["GET /api/v1/projects/nyc/jobs/job_1/advice"] = (200, {"sentence": "used 22 % of an A100", "options": []})
        self.assertEqual(self.client.advice("job_1")["sentence"], "used 22 % of an A100")

    def test_monitoring(self) -> None:
        at = "/api/v1/projects/nyc"
        self.server.answers.update({
            f"GET {at}/deployments/delay/status": (200, {"acts": []}),
            f"GET {at}/deployments/delay/rollout": (200, {"decision": {"outcome": "promote"}}),
            f"GET {at}/monitors/delay": (200, {"state": "ok"}),
            f"GET {at}/monitors/delay/windows?page_size=200&version=2": (200, {"items": [{"id": "2-1"}], "next_page_token": "n/1"}),
            f"GET {at}/monitors/delay/windows?page_size=200&version=2&page_token=n%2F1": (200, {"items": [{"id": "2-0"}]}),
        })
        self.assertEqual(self.client.deployment_status("delay"), {"acts": []})
        self.assertEqual(self.client.rollout("delay")["decision"]["outcome"], "promote")
        self.assertEqual(self.client.monitor("delay")["state"], "ok")
        self.assertEqual([w["id"] for w in self.client.windows("delay", version=2)], ["2-1", "2-0"])
