import { createColumnHelper } from '@tanstack/react-table';
import { useMemo } from 'react';
import { Link } from 'wouter';
import type { Gateway } from '../api/client';
import { useGateways } from '../api/queries';
import { pathOf } from '../frame/places';
import { DataTable } from '../parts/DataTable';
import { bytes } from '../parts/format';
import { leftOut, stateOf } from '../parts/gateway';
import { Empty, StateBadge } from '../parts/State';
import { Time } from '../parts/Time';

const column = createColumnHelper<Gateway>();

export const manifest = `falaj apply -f gateway.yaml

# gateway.yaml
api_version: falaj/v1
kind: Gateway
name: branch-7
spec:
  zone: home`;

export function GatewaysPage({ project }: { project: string }) {
  const gateways = useGateways(project);
  const columns = useMemo(
    () => [
      column.accessor('name', { header: 'Name', meta: { width: '15%' }, cell: (c) => <span title={c.row.original.spec.description}>{c.getValue()}</span> }),
      column.accessor((g) => g.spec.zone || 'home', { id: 'zone', header: 'Zone', meta: { width: '9%' } }),
      column.accessor((g) => stateOf(g, Date.now())[0], {
        id: 'state', header: 'State', meta: { width: '11%' },
        cell: (c) => <StateBadge state={c.getValue()} title={stateOf(c.row.original, Date.now())[1]} />,
      }),
      column.accessor((g) => (g.seen?.holds ?? []).map((h) => `${h.deployment} v${h.version}`).join(' '), {
        id: 'holds', header: 'Answers for', enableSorting: false, meta: { width: '26%' },
        cell: (c) => (c.row.original.seen?.holds ?? []).map((h) => <span key={h.deployment}><Link href={pathOf(project, 'deployments', h.deployment)}>{h.deployment}</Link> v{h.version} </span>),
      }),
      column.accessor(leftOut, { id: 'left', header: 'Not sent', enableSorting: false, meta: { width: '16%' }, cell: (c) => <span title={c.getValue()}>{c.getValue() || '–'}</span> }),
      column.accessor((g) => g.seen?.waiting ?? 0, { id: 'waiting', header: 'Pending predictions', meta: { width: '11%', right: true }, cell: (c) => (c.getValue() ? bytes(c.getValue()) : '–') }),
      column.accessor((g) => g.seen?.at ?? '', { id: 'seen', header: 'Seen', meta: { width: '12%' }, cell: (c) => <Time at={c.getValue()} relative /> }),
    ],
    [project],
  );
  return (
    <DataTable
      label="Gateways" list={gateways} columns={columns} rowKey={(g) => g.name}
      empty={<Empty title="No gateways" command={manifest}>A gateway is a Falaj server at another site that serves this project's models, also while it is disconnected.</Empty>}
    />
  );
}
