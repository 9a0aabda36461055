"""Asks a real server, where FALAJ_URL, FALAJ_TOKEN and FALAJ_PROJECT name one."""

from __future__ import annotations

import os
import unittest

import falaj


@unittest.skipUnless(os.environ.get("FALAJ_URL"), "set FALAJ_URL, FALAJ_TOKEN and FALAJ_PROJECT to ask a server")
class ServerTest(unittest.TestCase):
    def setUp(self) -> None:
        self.client = falaj.Client()

    def test_whoami(self) -> None:
        self.assertTrue(self.client.request("GET", "/api/v1/whoami"))

    def test_query(self) -> None:
        found = self.client.query("SELECT 1 AS one, 'NaN'::DOUBLE AS odd, NULL AS nothing")
        self.assertEqual(found.columns, ("one", "odd", "nothing"))
        self.assertEqual(found.rows[0][0], 1)
        self.assertNotEqual(found.rows[0][1], found.rows[0][1])
        self.assertIsNone(found.rows[0][2])

    def test_problems(self) -> None:
        for ask, kind in (
            (lambda: self.client.query("SELECT FROM"), "invalid"),
            (lambda: self.client.preview("no-such-dataset"), "not_found"),
            (lambda: self.client.predict("no-such-deployment", {"X": [[1]]}), "not_found"),
            (lambda: self.client.apply("kind: Nothing"), "invalid"),
            (lambda: falaj.Client(token="wrong").request("GET", "/api/v1/whoami"), "unauthenticated"),
        ):
            with self.assertRaises(falaj.Error) as caught:
                ask()
            self.assertEqual(caught.exception.kind, kind, str(caught.exception))
