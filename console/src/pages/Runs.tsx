import { Button, Checkbox, TextInput } from '@mantine/core';
import { createColumnHelper } from '@tanstack/react-table';
import { useMemo, useState, type ReactNode } from 'react';
import { Link, useLocation } from 'wouter';
import type { Run } from '../api/client';
import { useRunFigures, useRuns, useRunsNamed } from '../api/queries';
import { pathOf } from '../frame/places';
import { DataTable } from '../parts/DataTable';
import { number } from '../parts/format';
import { Empty, Failed, Panel, Picture, StateBadge, Wait } from '../parts/State';
import { Time } from '../parts/Time';

const column = createColumnHelper<Run>();

const most = 50; // runs that are compared, as the server has it
const shownMetrics = 4;
const shownParams = 3;

/** Metrics are numbers, or the words NaN, Infinity and -Infinity. */
const metric = (v: unknown) => (typeof v === 'number' ? number(v, 4) : String(v ?? '–'));
const metrics = (r: Run) => r.metrics as Record<string, unknown>;
const params = (r: Run) => r.params as Record<string, string>;
const short = (name: string) => name.replace(/^falaj\.param\./, '');

/** The names that most of the runs have, most first. */
function common(runs: readonly Run[], of: (r: Run) => Record<string, unknown>, many: number) {
  const counts = new Map<string, number>();
  for (const r of runs) for (const name of Object.keys(of(r))) counts.set(name, (counts.get(name) ?? 0) + 1);
  return [...counts].sort(([a, n], [b, m]) => m - n || a.localeCompare(b)).slice(0, many).map(([name]) => name);
}

/** The names of parameters that are not the same for all. */
const differing = (runs: readonly Run[]) =>
  [...new Set(runs.flatMap((r) => Object.keys(params(r))))].filter((name) => new Set(runs.map((r) => params(r)[name])).size > 1).sort();

export function RunsPage({ project }: { project: string }) {
  const [, go] = useLocation();
  const [text, setText] = useState('');
  const [filter, setFilter] = useState('');
  const [chosen, setChosen] = useState<readonly string[]>([]);
  const list = useRuns(project, filter);
  const columns = useMemo(() => {
    const differ = new Set(differing(list.rows));
    const toggle = (id: string) => setChosen((all) => (all.includes(id) ? all.filter((i) => i !== id) : [...all, id]));
    return [
      column.display({
        id: 'choose', header: '', meta: { width: '4%' },
        cell: (c) => <Checkbox size="xs" aria-label={`Compare ${c.row.original.name}`} checked={chosen.includes(c.row.original.id)} onChange={() => toggle(c.row.original.id)} />,
      }),
      column.accessor('name', { header: 'Name', meta: { width: '18%' }, cell: (c) => <Link href={pathOf(project, 'runs', c.row.original.id)}>{c.getValue()}</Link> }),
      column.accessor((r) => r.status.toLowerCase(), { id: 'status', header: 'Status', meta: { width: '10%' }, cell: (c) => <StateBadge state={c.getValue()} /> }),
      column.accessor('started_at', { header: 'Started', meta: { width: '11%' }, cell: (c) => <Time at={c.getValue()} relative /> }),
      ...common(list.rows, (r) => Object.fromEntries(Object.entries(params(r)).filter(([name]) => differ.has(name))), shownParams).map((name) =>
        column.accessor((r) => params(r)[name] ?? '', { id: `param ${name}`, header: short(name), cell: (c) => <span title={c.getValue()}>{c.getValue() || '–'}</span> }),
      ),
      ...common(list.rows, metrics, shownMetrics).map((name) =>
        column.accessor((r) => metrics(r)[name] ?? null, { id: `metric ${name}`, header: name, meta: { right: true }, cell: (c) => <span className="num">{metric(c.getValue())}</span> }),
      ),
    ];
  }, [project, list.rows, chosen]);
  return (
    <>
      <form className="ask" onSubmit={(e) => { e.preventDefault(); setFilter(text.trim()); }}>
        <TextInput size="xs" aria-label="Filter" placeholder="metrics.loss < 0.1 and params.lr = '0.01'" value={text} onChange={(e) => setText(e.currentTarget.value)} />
        <Button size="xs" variant="default" type="submit">Search</Button>
        <Button size="xs" disabled={chosen.length < 2 || chosen.length > most} onClick={() => go(pathOf(project, 'runs', chosen.join(',')))}>Compare{chosen.length > 1 && ` ${chosen.length}`}</Button>
        {chosen.length > most && <span className="dim">At most {most} can be compared.</span>}
      </form>
      <DataTable
        label="Runs" list={list} columns={columns} rowKey={(r) => r.id} open={(r) => go(pathOf(project, 'runs', r.id))}
        empty={filter
          ? <Empty title="No matching runs">{filter}</Empty>
          : <Empty title="No runs" command={'mlflow.start_run()\nmlflow.log_metric("loss", 0.1, step=1)'}>A run contains the params and metrics of a training. Each job has one; MLflow’s clients create others.</Empty>}
      />
    </>
  );
}

/** One run, or several beside each other. */
export function RunPage({ project, ids }: { project: string; ids: readonly string[] }) {
  const q = useRunsNamed(project, ids);
  const figures = useRunFigures(project, ids, q.data?.some((r) => r.status === 'RUNNING') ?? false);
  if (q.isPending) return <Wait what="Loading the runs …" />;
  if (q.error) return <Failed error={q.error} again={() => void q.refetch()} />;
  const runs = q.data;
  return (
    <div className="detail">
      <Panel title={runs.length === 1 ? (runs[0]?.name ?? '') : 'Compare runs'} wide>
        <Beside project={project} runs={runs} />
      </Panel>
      {figures.isPending && <Panel title="Curves" wide><Wait what="Drawing …" /></Panel>}
      {figures.error && <Panel title="Curves" wide><Failed error={figures.error} again={() => void figures.refetch()} /></Panel>}
      {figures.data?.items?.map((f) => <Picture key={f.title} figure={f} />)}
    </div>
  );
}

function Beside({ project, runs }: { project: string; runs: readonly Run[] }) {
  const names = runs.length === 1 ? common(runs, params, Infinity) : differing(runs);
  const rows: [name: string, of: (r: Run) => ReactNode][] = [
    ['Status', (r) => <StateBadge state={r.status.toLowerCase()} />],
    ['Started', (r) => <Time at={r.started_at} />],
    ['Ended', (r) => <Time at={r.ended_at} />],
    ['Job', (r) => (r.job ? <Link href={pathOf(project, 'jobs', r.job)}>job</Link> : '–')],
    ['Data', (r) => r.datasets?.join(', ') || '–'],
    ...names.map((name): (typeof rows)[number] => [short(name), (r) => params(r)[name] ?? '–']),
    ...common(runs, metrics, Infinity).sort().map((name): (typeof rows)[number] => [name, (r) => <span className="num">{metric(metrics(r)[name])}</span>]),
  ];
  return (
    <div className="besides">
      <table className="plain">
        <thead><tr><th scope="col">Run</th>{runs.map((r) => <th key={r.id} scope="col" title={r.id}>{runs.length === 1 ? r.id : <Link href={pathOf(project, 'runs', r.id)}>{r.name}</Link>}</th>)}</tr></thead>
        <tbody>{rows.map(([name, of], i) => <tr key={i}><th scope="row">{name}</th>{runs.map((r) => <td key={r.id}>{of(r)}</td>)}</tr>)}</tbody>
      </table>
    </div>
  );
}
