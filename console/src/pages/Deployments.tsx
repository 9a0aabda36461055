import { createColumnHelper } from '@tanstack/react-table';
import { useMemo } from 'react';
import { Link, useLocation } from 'wouter';
import type { Deployment, Monitor, Target } from '../api/monitoring';
import { useDeployments, useMonitors } from '../api/queries';
import { pathOf } from '../frame/places';
import { DataTable } from '../parts/DataTable';
import { Empty, StateBadge } from '../parts/State';
import { Time } from '../parts/Time';
import { Weights } from '../parts/Weights';

/** The targets of a deployment; one that says nothing answers with its version alone. */
export const targetsOf = (d: Deployment): Target[] => (d.targets?.length ? d.targets : [{ role: 'stable', version: d.version, weight: 100, state: d.state, batching: false, replicas: 1 }]);

type Row = Deployment & { monitor?: Monitor };
const column = createColumnHelper<Row>();

export const manifest = `falaj apply -f deployment.yaml

# deployment.yaml
api_version: falaj/v1
kind: Deployment
name: delay
spec:
  model: delay
  version: champion`;

export function DeploymentsPage({ project }: { project: string }) {
  const [, go] = useLocation();
  const deployments = useDeployments(project);
  const monitors = useMonitors(project);
  const rows = useMemo(() => {
    const by = new Map(monitors.rows.map((m) => [m.deployment, m]));
    return deployments.rows.map((d): Row => ({ ...d, monitor: by.get(d.name) }));
  }, [deployments.rows, monitors.rows]);
  const columns = useMemo(
    () => [
      column.accessor('name', { header: 'Name', meta: { width: '20%' }, cell: (c) => <Link href={pathOf(project, 'deployments', c.getValue())}>{c.getValue()}</Link> }),
      column.accessor('model', { header: 'Model', meta: { width: '16%' } }),
      column.accessor((d) => targetsOf(d).map((t) => `v${t.version} ${t.role}`).join(' '), {
        id: 'versions', header: 'Versions', enableSorting: false, meta: { width: '26%' }, cell: (c) => <Weights targets={targetsOf(c.row.original)} />,
      }),
      column.accessor('state', { header: 'State', meta: { width: '11%' }, cell: (c) => <StateBadge state={c.getValue()} title={c.row.original.reason} /> }),
      column.accessor((d) => d.monitor?.state ?? '', {
        id: 'monitor', header: 'Monitor', meta: { width: '12%' },
        cell: (c) => (c.getValue() ? <StateBadge state={c.getValue()} title={c.row.original.monitor?.reason} /> : <span className="faint">none</span>),
      }),
      column.accessor('updated_at', { header: 'Changed', meta: { width: '15%' }, cell: (c) => <Time at={c.getValue()} relative /> }),
    ],
    [project],
  );
  return (
    <DataTable
      label="Deployments" list={{ ...deployments, rows }} columns={columns} rowKey={(d) => d.id} open={(d) => go(pathOf(project, 'deployments', d.name))}
      empty={<Empty title="No deployments" command={manifest}>A deployment serves versions of a model under a name. Register a model first, then apply a manifest.</Empty>}
    />
  );
}
