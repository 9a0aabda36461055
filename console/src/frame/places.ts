// Where objects have their pages, and what their kinds are called. Pure.
export const pathOf = (project: string, ...parts: string[]) => ['/p', project, ...parts].map((p, i) => (i === 0 ? p : encodeURIComponent(p))).join('/').replace(/\/$/, '');

/** What the links name that MLflow's clients print, `/#/experiments/1/runs/…`: a run, or "" for all. Undefined: it is no such link. */
export function linkedRun(hash: string): string | undefined {
  const parts = /^#\/experiments\/\d+(?:\/runs\/([\w-]{1,100}))?(?:[/?]|$)/.exec(hash);
  return parts ? (parts[1] ?? '') : undefined;
}

const names: Record<string, [one: string, many: string]> = {
  dataset: ['dataset', 'Datasets'],
  feature_view: ['feature view', 'Feature views'],
  feature_service: ['feature service', 'Feature services'],
  entity: ['entity', 'Entities'],
  model: ['model', 'Models'],
  deployment: ['deployment', 'Deployments'],
  monitor: ['monitor', 'Monitors'],
  source: ['source', 'Sources'],
  job: ['job', 'Jobs'],
  environment: ['environment', 'Environments'],
  experiment: ['experiment', 'Experiments'],
  sweep: ['sweep', 'Sweeps'],
  lineage: ['told by others', 'Told by others'],
};

export const kindName = (kind: string) => names[kind]?.[0] ?? kind.replaceAll('_', ' ');
export const kindsName = (kind: string) => names[kind]?.[1] ?? kindName(kind);

/** The page of lineage around an object; others' have a namespace. */
export const lineageOf = (project: string, kind: string, name: string, namespace = '') =>
  pathOf(project, 'lineage', `${kind} ${name}`) + (namespace && `?namespace=${encodeURIComponent(namespace)}`);

/** The page of an object; a model's is its lineage. Undefined: it has none. */
export function placeOf(project: string, kind: string, name: string): string | undefined {
  switch (kind) {
    case 'dataset':
      return pathOf(project, 'datasets', name);
    case 'feature_view':
      return pathOf(project, 'features', name);
    case 'feature_service':
      return pathOf(project, 'services', name);
    case 'model':
      return lineageOf(project, 'model', name);
    case 'deployment':
      return pathOf(project, 'deployments', name);
    case 'monitor':
      return pathOf(project, 'monitoring');
    case 'job':
      return pathOf(project, 'jobs', name);
    case 'sweep':
      return pathOf(project, 'sweeps', name);
    case 'entity':
      return pathOf(project, 'features');
  }
  return undefined;
}
