"""The storage that a test asks for: Optuna's own client of `falaj sweep storage`, or the
SDK's, which asks the server itself."""

import os
import warnings

import optuna

warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
optuna.logging.set_verbosity(optuna.logging.WARNING)


def storage():
    if proxy := os.environ.get("STORAGE_PROXY"):
        host, port = proxy.rsplit(":", 1)
        return optuna.storages.GrpcStorageProxy(host=host, port=int(port))
    import falaj

    return falaj.optuna.storage()
