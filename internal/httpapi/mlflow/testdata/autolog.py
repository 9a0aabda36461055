"""Autologging of the libraries that are installed, against a Falaj server.

Each trains a small model, and what it logged is looked up: params, metrics, the
model with its files, the data that it was trained on. The exit status is the
verdict.
"""

import importlib.util
import json
import warnings

import mlflow
import numpy as np
from mlflow import MlflowClient

warnings.simplefilter("ignore")
rows = np.random.default_rng(1)
X = rows.normal(size=(200, 4))
y = (X[:, 0] + X[:, 1] > 0).astype(int)


def logged(client, name, params, metrics):
    """What the last run of an experiment has."""
    runs = mlflow.search_runs(experiment_names=[name], output_format="list")
    assert runs and runs[0].info.status == "FINISHED", runs
    run = client.get_run(runs[0].info.run_id)
    assert params <= set(run.data.params), (params, run.data.params)
    assert metrics <= set(run.data.metrics), (metrics, run.data.metrics)
    assert run.inputs.dataset_inputs, "the data was not logged"
    [model] = mlflow.search_logged_models(experiment_ids=[run.info.experiment_id], output_format="list")
    assert model.status == "READY" and model.source_run_id == run.info.run_id, model
    assert "MLmodel" in {f.path for f in client.list_logged_model_artifacts(model.model_id)}
    return run, model


def scikit_learn(client):
    from sklearn.linear_model import LogisticRegression

    mlflow.set_experiment("sklearn")
    mlflow.sklearn.autolog()
    fitted = LogisticRegression(C=0.5).fit(X, y)
    fitted.score(X, y)
    mlflow.sklearn.autolog(disable=True)
    run, model = logged(client, "sklearn", {"C", "solver"}, {"training_accuracy_score", "training_log_loss"})
    again = mlflow.sklearn.load_model(model.model_uri)
    assert (again.predict(X) == fitted.predict(X)).all()
    assert mlflow.register_model(model.model_uri, "sk").version in (1, "1")


def xgboost(client):
    import xgboost

    mlflow.set_experiment("xgboost")
    mlflow.xgboost.autolog()
    data = xgboost.DMatrix(X, label=y)
    xgboost.train({"objective": "binary:logistic", "max_depth": 2, "nthread": 1}, data, num_boost_round=5, evals=[(data, "train")], verbose_eval=False)
    mlflow.xgboost.autolog(disable=True)
    run, model = logged(client, "xgboost", {"max_depth", "num_boost_round"}, {"train-logloss"})
    assert len(client.get_metric_history(run.info.run_id, "train-logloss")) == 5
    assert mlflow.xgboost.load_model(model.model_uri).predict(data).shape == (200,)


def lightgbm(client):
    import lightgbm

    mlflow.set_experiment("lightgbm")
    mlflow.lightgbm.autolog()
    data = lightgbm.Dataset(X, label=y)
    lightgbm.train({"objective": "binary", "num_leaves": 4, "verbosity": -1, "num_threads": 1}, data, num_boost_round=5, valid_sets=[data], valid_names=["train"])
    mlflow.lightgbm.autolog(disable=True)
    run, model = logged(client, "lightgbm", {"num_leaves", "num_boost_round"}, {"train-binary_logloss"})
    assert len(client.get_metric_history(run.info.run_id, "train-binary_logloss")) == 5
    assert mlflow.lightgbm.load_model(model.model_uri).predict(X).shape == (200,)


def main():
    client = MlflowClient()
    done = []
    for module, train in {"sklearn": scikit_learn, "xgboost": xgboost, "lightgbm": lightgbm}.items():
        assert importlib.util.find_spec(module), f"{module} is not installed"
        train(client)
        done.append(module)
    print(json.dumps({"mlflow": mlflow.__version__, "autologged": done}))


if __name__ == "__main__":
    main()
