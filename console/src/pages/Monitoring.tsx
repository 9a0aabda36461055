import { createColumnHelper } from '@tanstack/react-table';
import { useMemo } from 'react';
import { Link, useLocation } from 'wouter';
import type { Monitor } from '../api/monitoring';
import { useMonitors } from '../api/queries';
import { pathOf } from '../frame/places';
import { DataTable } from '../parts/DataTable';
import { count } from '../parts/format';
import { Empty, StateBadge } from '../parts/State';
import { Time } from '../parts/Time';

const column = createColumnHelper<Monitor>();

export function MonitoringPage({ project }: { project: string }) {
  const [, go] = useLocation();
  const monitors = useMonitors(project);
  const columns = useMemo(
    () => [
      column.accessor('name', { header: 'Monitor', meta: { width: '16%' }, cell: (c) => <Link href={pathOf(project, 'deployments', c.row.original.deployment)}>{c.getValue()}</Link> }),
      column.accessor('state', { header: 'State', meta: { width: '11%' }, cell: (c) => <StateBadge state={c.getValue()} /> }),
      column.accessor((m) => m.since ?? '', { id: 'since', header: 'Since', meta: { width: '12%' }, cell: (c) => <Time at={c.getValue()} form="date" /> }),
      column.accessor((m) => m.problem || m.reason || '', { id: 'why', header: 'Why', enableSorting: false, meta: { width: '29%' }, cell: (c) => <span title={c.getValue()}>{c.getValue()}</span> }),
      column.accessor((m) => m.version ?? 0, { id: 'version', header: 'Version', meta: { width: '9%', right: true }, cell: (c) => (c.getValue() ? `v${c.getValue()}` : '–') }),
      column.accessor('windows', { header: 'Windows', meta: { width: '9%', right: true }, cell: (c) => count(c.getValue()) }),
      column.accessor((m) => m.watermark ?? '', { id: 'watermark', header: 'Records up to', meta: { width: '14%' }, cell: (c) => <Time at={c.getValue()} /> }),
    ],
    [project],
  );
  return (
    <DataTable
      label="Monitors" list={monitors} columns={columns} rowKey={(m) => m.name} open={(m) => go(pathOf(project, 'deployments', m.deployment))}
      empty={<Empty title="No monitors">A monitor is created with each deployment. Deploy a model, or apply a manifest of kind Monitor.</Empty>}
    />
  );
}
