"""Optuna's own tests of a storage, as its wheel has them."""

import pytest
from chosen import storage as chosen
from optuna.testing.pytest_storages import StorageTestCase


class TestStorage(StorageTestCase):
    @pytest.fixture
    def storage(self):
        s = chosen()
        for study in s.get_all_studies():
            s.delete_study(study._study_id)
        yield s
        s.close()
