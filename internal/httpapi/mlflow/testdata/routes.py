import json
from mlflow.protos import service_pb2, model_registry_pb2, mlflow_artifacts_pb2, databricks_pb2, webhooks_pb2
rows=[]
for svc in (service_pb2.DESCRIPTOR.services_by_name['MlflowService'], model_registry_pb2.DESCRIPTOR.services_by_name['ModelRegistryService'], mlflow_artifacts_pb2.DESCRIPTOR.services_by_name['MlflowArtifactsService'], webhooks_pb2.DESCRIPTOR.services_by_name['WebhookService']):
    for m in svc.methods:
        for e in m.GetOptions().Extensions[databricks_pb2.rpc].endpoints:
            rows.append({"service":svc.name,"rpc":m.name,"method":e.method,"path":"/"+e.path.lstrip("/"),"api":f"{e.since.major}.0"})
print(json.dumps(rows,indent=0))
