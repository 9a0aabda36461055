import { Button } from '@mantine/core';
import { createColumnHelper } from '@tanstack/react-table';
import { useQueryClient } from '@tanstack/react-query';
import { useMemo, useState } from 'react';
import { Link, useLocation } from 'wouter';
import type { Sweep, SweepSummary, Trial } from '../api/client';
import { inProject, post } from '../api/client';
import { underWay, useFigures, useSweep, useSweeps, useTrials } from '../api/queries';
import { pathOf } from '../frame/places';
import { DataTable } from '../parts/DataTable';
import { number } from '../parts/format';
import { Empty, Failed, Panel, Picture, StateBadge, Wait } from '../parts/State';
import { Time } from '../parts/Time';

const sweeps = createColumnHelper<Sweep>();
const trials = createColumnHelper<Trial>();

const objectives = (s: Sweep) => (s.spec.objectives ?? []).map((o) => `${o.metric}, ${o.direction ?? 'minimize'}d`).join('; ');

export function SweepsPage({ project }: { project: string }) {
  const [, go] = useLocation();
  const list = useSweeps(project);
  const columns = useMemo(
    () => [
      sweeps.accessor('name', { header: 'Name', meta: { width: '20%' }, cell: (c) => <Link href={pathOf(project, 'sweeps', c.getValue())}>{c.getValue()}</Link> }),
      sweeps.accessor('state', { header: 'State', meta: { width: '11%' }, cell: (c) => <StateBadge state={c.getValue()} /> }),
      sweeps.accessor(objectives, { id: 'objectives', header: 'Objectives', meta: { width: '22%' } }),
      sweeps.accessor((s) => s.reason ?? '', { id: 'reason', header: 'Why', enableSorting: false, meta: { width: '32%' } }),
      sweeps.accessor('created_at', { header: 'Made', meta: { width: '15%' }, cell: (c) => <Time at={c.getValue()} relative /> }),
    ],
    [project],
  );
  return (
    <DataTable
      label="Sweeps" list={list} columns={columns} rowKey={(s) => s.name} open={(s) => go(pathOf(project, 'sweeps', s.name))}
      empty={<Empty title="No sweep was made" command={`falaj apply -f sweep.yaml --project ${project}`}>A sweep searches for good hyper-parameters; each of its trials is a job. Optuna's studies are here, too.</Empty>}
    />
  );
}

export function SweepPage({ project, name }: { project: string; name: string }) {
  const q = useSweep(project, name);
  if (q.isPending) return <Wait what="Loading the sweep …" />;
  if (q.error) return <Failed error={q.error} again={() => void q.refetch()} />;
  return <Detail project={project} sweep={q.data} />;
}

function Detail({ project, sweep }: { project: string; sweep: SweepSummary }) {
  const client = useQueryClient();
  const [stopping, setStopping] = useState<'no' | 'asked' | 'sent'>('no');
  const [problem, setProblem] = useState<unknown>();
  const counts = Object.entries(sweep.counts ?? {});
  const stop = async () => {
    if (stopping === 'no') return setStopping('asked');
    setStopping('sent');
    try {
      await post(inProject(project, 'sweeps', sweep.name, 'stop'), {});
      await client.invalidateQueries({ queryKey: ['sweep', project] });
    } catch (e) {
      setProblem(e);
    }
    setStopping('no');
  };
  return (
    <div className="detail">
      <div className="factline">
        <dl className="facts">
          <div><dt>State</dt><dd><StateBadge state={sweep.state} /></dd></div>
          <div><dt>Objectives</dt><dd>{objectives(sweep)}</dd></div>
          <div><dt>Trials</dt><dd>{counts.length ? counts.map(([state, n]) => <StateBadge key={state} state={state} many={n} />) : <span className="faint">–</span>}</dd></div>
          <div><dt>Made</dt><dd><Time at={sweep.created_at} /></dd></div>
        </dl>
        {sweep.state === 'running' && !sweep.stop && (
          <div className="act">
            <Button size="xs" variant="default" color="red" loading={stopping === 'sent'} onClick={() => void stop()} onBlur={() => stopping === 'asked' && setStopping('no')}>
              {stopping === 'asked' ? 'Really stop?' : 'Stop the sweep'}
            </Button>
          </div>
        )}
      </div>
      {problem != null && <Failed error={problem} />}
      {(sweep.reason || sweep.hint) && (
        <Panel title="Why" wide>
          <p>{sweep.reason}</p>
          {sweep.hint && <p className="dim">{sweep.hint}</p>}
        </Panel>
      )}
      <Trials project={project} sweep={sweep} />
      <Figures project={project} sweep={sweep} />
    </div>
  );
}

const value = (v: unknown) => (typeof v === 'number' ? number(v, 4) : v == null ? 'null' : String(v));

function Trials({ project, sweep }: { project: string; sweep: SweepSummary }) {
  const list = useTrials(project, sweep.name, underWay(sweep.state));
  const best = useMemo(() => new Set((sweep.best ?? []).map((t) => t.number)), [sweep.best]);
  const columns = useMemo(
    () => [
      trials.accessor('number', { header: 'Trial', meta: { width: '8%' }, cell: (c) => <span className="num">{c.getValue()}{best.has(c.getValue()) && ' ★'}</span> }),
      trials.accessor('state', { header: 'State', meta: { width: '11%' }, cell: (c) => <StateBadge state={c.getValue()} title={c.row.original.reason} /> }),
      ...(sweep.spec.objectives ?? []).map((o, i) =>
        trials.accessor((t) => t.values?.[i] ?? null, { id: `value ${i}`, header: o.metric, meta: { right: true }, cell: (c) => <span className="num">{c.getValue() == null ? '' : value(c.getValue())}</span> }),
      ),
      ...(sweep.spec.parameters ?? []).map((p) =>
        trials.accessor((t) => (t.params as Record<string, unknown> | undefined)?.[p.name] ?? null, {
          id: `param ${p.name}`, header: p.name, meta: { right: p.type !== 'categorical' },
          cell: (c) => { const params = c.row.original.params as Record<string, unknown> | undefined; return params && p.name in params ? <span className="num">{value(params[p.name])}</span> : <span className="faint">–</span>; },
        }),
      ),
      trials.accessor((t) => t.job ?? '', { id: 'job', header: 'Job', meta: { width: '12%' }, cell: (c) => (c.getValue() ? <Link href={pathOf(project, 'jobs', c.getValue())}>job</Link> : <span className="faint">–</span>) }),
    ],
    [project, sweep.spec, best],
  );
  return <Panel title="Trials" wide><DataTable label="Trials" list={list} columns={columns} rowKey={(t) => String(t.number)} empty={<p className="dim">No trials started yet.</p>} /></Panel>;
}

function Figures({ project, sweep }: { project: string; sweep: SweepSummary }) {
  const q = useFigures(project, sweep.name, underWay(sweep.state));
  if (q.isPending) return <Panel title="Pictures" wide><Wait what="Drawing …" /></Panel>;
  if (q.error) return <Panel title="Pictures" wide><Failed error={q.error} again={() => void q.refetch()} /></Panel>;
  return <>{(q.data.items ?? []).map((f) => <Picture key={f.title} figure={f} />)}</>;
}
