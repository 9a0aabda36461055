"""Autologging of PyTorch Lightning against a Falaj server.

A small network is trained, and what it logged is looked up: params, the history of
the loss, the model, which answers as the trained one does. The exit status is the
verdict.
"""

import dataclasses
import json
import sys
import warnings

if sys.version_info >= (3, 11) and "/usr/lib/python3/dist-packages" in sys.path:
    # Debian's torch is older than its Python, which refuses defaults that cannot be hashed.
    _dataclass = dataclasses.dataclass

    def hashable(cls=None, **options):
        if cls is not None and cls.__module__.startswith("torch.") and "__hash__" not in vars(cls):
            options["unsafe_hash"] = True
        return _dataclass(cls, **options)

    dataclasses.dataclass = hashable

import mlflow
import pytorch_lightning as lightning
import torch
from mlflow import MlflowClient

warnings.simplefilter("ignore")
torch.manual_seed(1)
X = torch.randn(64, 4)
y = (X[:, 0] > 0).float()


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x):
        return self.layer(x)

    def training_step(self, batch, _):
        x, target = batch
        loss = torch.nn.functional.binary_cross_entropy_with_logits(self(x).squeeze(1), target)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.1)


def main():
    client = MlflowClient()
    mlflow.set_experiment("pytorch")
    mlflow.pytorch.autolog()
    net = Net()
    trainer = lightning.Trainer(max_epochs=3, logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu")
    trainer.fit(net, torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, y), batch_size=16))
    mlflow.pytorch.autolog(disable=True)

    [found] = mlflow.search_runs(experiment_names=["pytorch"], output_format="list")
    run = client.get_run(found.info.run_id)
    assert run.info.status == "FINISHED", run.info
    assert {"epochs", "lr", "optimizer_name"} <= set(run.data.params), run.data.params
    assert run.data.params["epochs"] == "3" and run.data.params["lr"] == "0.1"
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [m.step for m in history] == [0, 1, 2], history
    assert history[-1].value == run.data.metrics["loss"] < history[0].value
    uri = f"runs:/{run.info.run_id}/model"
    if hasattr(mlflow, "search_logged_models"):  # 3.x
        [model] = mlflow.search_logged_models(experiment_ids=[run.info.experiment_id], output_format="list")
        assert model.status == "READY" and model.source_run_id == run.info.run_id, model
        uri = model.model_uri
    again = mlflow.pytorch.load_model(uri)
    assert torch.equal(again(X), net(X))
    assert "model_summary.txt" in {f.path for f in client.list_artifacts(run.info.run_id)}
    print(json.dumps({"mlflow": mlflow.__version__, "torch": torch.__version__, "lightning": lightning.__version__}))


if __name__ == "__main__":
    main()
