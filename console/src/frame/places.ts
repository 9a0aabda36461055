// Where objects have their pages, and what their kinds are called. Pure.
export const pathOf = (project: string, ...parts: string[]) => ['/p', project, ...parts].map((p, i) => (i === 0 ? p : encodeURIComponent(p))).join('/').replace(/\/$/, '');

/** What a part of an address says, the reverse of pathOf; one that is not encoded well is taken as it is. */
export function partOf(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** The project, the section and the object that an address below /console names. */
export function partsOf(path: string): { project?: string; section: string; object: string } {
  const [, , project, section = '', object = ''] = path.replace(/[?#].*$/s, '').split('/');
  return { project: project && partOf(project), section: partOf(section), object: partOf(object) };
}

/** What a link in the form of MLflow's names: runs are all of them, without a name. */
export type Linked = { kind: 'run' | 'model' | 'job'; name: string } | { kind: 'runs' };

/**
 * Links that MLflow's clients print and people keep: `/#/experiments/1/runs/…`, `/#/models/NAME/versions/1`, and `/#/jobs/…`.
 * Undefined: it is no such link.
 */
export function linked(hash: string): Linked | undefined {
  const run = /^#\/experiments\/\d+(?:\/runs\/([\w-]{1,100}))?(?:[/?]|$)/.exec(hash);
  if (run) return run[1] ? { kind: 'run', name: run[1] } : { kind: 'runs' };
  const object = /^#\/(model|job)s\/([^/?#]{1,1000})(?:[/?]|$)/.exec(hash);
  return object ? { kind: object[1] as 'model' | 'job', name: partOf(object[2]!) } : undefined;
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
  lineage: ['external (OpenLineage)', 'External (OpenLineage)'],
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
    case 'run':
      return pathOf(project, 'runs', name);
    case 'job':
      return pathOf(project, 'jobs', name);
    case 'sweep':
      return pathOf(project, 'sweeps', name);
    case 'entity':
      return pathOf(project, 'features');
  }
  return undefined;
}
