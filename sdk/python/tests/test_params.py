import os
import unittest
from unittest import mock

import falaj


class Params(unittest.TestCase):
    def test_defaults_and_what_was_told(self):
        with mock.patch.dict(os.environ, {"FALAJ_PARAMS": '{"lr": 0.5, "on": true, "none": null}'}):
            self.assertEqual(falaj.params(lr=0.1, layers=2), {"lr": 0.5, "layers": 2, "on": True, "none": None})

    def test_outside_of_jobs(self):
        with mock.patch.dict(os.environ):
            os.environ.pop("FALAJ_PARAMS", None)
            self.assertEqual(falaj.params(lr=0.1), {"lr": 0.1})
            self.assertEqual(falaj.params(), {})

    def test_what_is_no_object(self):
        with mock.patch.dict(os.environ, {"FALAJ_PARAMS": "[1]"}), self.assertRaises(ValueError):
            falaj.params()


if __name__ == "__main__":
    unittest.main()
