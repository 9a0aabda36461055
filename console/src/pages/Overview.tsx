import { useMemo } from 'react';
import { Link } from 'wouter';
import { get, type AuditEntry, type Page } from '../api/client';
import { useLive, type Happened } from '../api/live';
import { useDatasets, useDeployments, useJobs, useModels, useMonitors } from '../api/queries';
import { useQuery } from '@tanstack/react-query';
import { pathOf } from '../frame/places';
import { count } from '../parts/format';
import { Empty, Failed, Panel, StateBadge } from '../parts/State';
import { Time } from '../parts/Time';
import { Who } from './Lists';

const text = (v: unknown) => (typeof v === 'string' || typeof v === 'number' ? String(v) : '');

/** What an event says, in a line. */
export function told(e: Happened): { subject: string; words: string; href?: string } {
  const [noun = '', verb = ''] = e.name.split('.');
  const b = e.body ?? {};
  const subject = text(b.name) || text(b.deployment) || text(b.job) || text(b.ref) || '';
  const words = text(b.reason) || (text(b.version) && `version ${text(b.version)}`);
  const place =
    noun === 'job' ? pathOf(e.project, 'jobs', text(b.job)) : noun === 'deployment' || noun === 'rollout' ? pathOf(e.project, 'deployments', text(b.name) || text(b.deployment)) : noun === 'monitor' ? pathOf(e.project, 'deployments', text(b.deployment)) : undefined;
  return { subject: `${noun.replaceAll('_', ' ')} ${subject}`.trim(), words: [verb.replaceAll('_', ' '), words].filter(Boolean).join(': '), href: place };
}

export function OverviewPage({ project }: { project: string }) {
  const deployments = useDeployments(project);
  const monitors = useMonitors(project);
  const jobs = useJobs(project);
  const models = useModels(project);
  const datasets = useDatasets(project);
  const live = useLive();
  const recent = useQuery({
    queryKey: ['audit', project, 'recent'],
    queryFn: ({ signal }) => get<Page<AuditEntry>>(`/api/v1/audit?project=${encodeURIComponent(project)}&page_size=15`, signal),
    refetchInterval: 15_000,
  });
  const by = (rows: readonly { state: string }[], ...states: string[]) => rows.filter((r) => states.includes(r.state)).length;
  const tiles = [
    { name: 'Deployments', path: 'deployments', list: deployments, notes: [[by(deployments.rows, 'failed'), 'failed'], [by(deployments.rows, 'loading'), 'loading']] },
    { name: 'Monitors', path: 'monitoring', list: monitors, notes: [[by(monitors.rows, 'degraded'), 'degraded'], [by(monitors.rows, 'drifted'), 'drifted'], [by(monitors.rows, 'unjudged'), 'unjudged']] },
    { name: 'Jobs', path: 'jobs', list: jobs, notes: [[by(jobs.rows, 'running'), 'running'], [by(jobs.rows, 'queued'), 'queued']] },
    { name: 'Models', path: 'models', list: models, notes: [] },
    { name: 'Datasets', path: 'datasets', list: datasets, notes: [] },
  ] as const;
  const attention = useMemo(
    () => [
      ...deployments.rows.filter((d) => d.state === 'failed').map((d) => ({ key: d.id, href: pathOf(project, 'deployments', d.name), what: d.name, state: d.state, why: d.reason ?? '' })),
      ...monitors.rows.filter((m) => m.state === 'drifted' || m.state === 'degraded' || m.state === 'unjudged' || m.problem).map((m) => ({ key: m.name, href: pathOf(project, 'deployments', m.deployment), what: m.deployment, state: m.state, why: m.problem || m.reason || '' })),
      ...jobs.rows.filter((j) => j.state === 'queued').slice(0, 5).map((j) => ({ key: j.id, href: pathOf(project, 'jobs', j.id), what: j.name, state: j.state, why: j.reason ?? '' })),
    ],
    [deployments.rows, monitors.rows, jobs.rows, project],
  );
  return (
    <div className="detail">
      <div className="tiles">
        {tiles.map((t) => (
          <Link key={t.name} href={pathOf(project, t.path)} className="tile">
            <span className="dim">{t.name}</span>
            <strong className="num">{t.list.error ? '–' : t.list.loading ? '…' : count(t.list.rows.length) + (t.list.cut || t.list.more ? '+' : '')}</strong>
            <span className="notes">{t.notes.filter(([n]) => n > 0).map(([n, state]) => <StateBadge key={state} state={state} many={n} />)}</span>
          </Link>
        ))}
      </div>
      <Panel title="Needs attention" wide>
        {attention.length === 0 ? (
          <p className="dim">No problems: deployments are ready, monitors report no drift, no jobs are pending.</p>
        ) : (
          <ul className="feed">{attention.map((a) => <li key={a.key}><StateBadge state={a.state} /><div><Link href={a.href}>{a.what}</Link> <span className="dim">{a.why}</span></div></li>)}</ul>
        )}
      </Panel>
      <Panel title="Now" note="Events since you opened this project">
        {live.events.length === 0 ? (
          <Empty title="Quiet">Events in {project} appear here immediately.</Empty>
        ) : (
          <ul className="feed">
            {live.events.slice(0, 60).map((e) => {
              const t = told(e);
              return <li key={e.id}><Time at={e.time} relative /><div>{t.href ? <Link href={t.href}>{t.subject}</Link> : <strong>{t.subject}</strong>} <span className="dim">{t.words}</span></div></li>;
            })}
          </ul>
        )}
      </Panel>
      <Panel title="On record" note="The newest entries of the audit log">
        {recent.error ? (
          <Failed error={recent.error} />
        ) : (
          <ul className="feed">
            {recent.data?.items?.map((e) => (
              <li key={e.index}><Time at={e.time} relative /><div><strong><Who entry={e} /></strong> {e.action} <span className="dim">{e.object}</span> {e.outcome !== 'done' && <StateBadge state={e.outcome} title={e.reason} />}</div></li>
            ))}
          </ul>
        )}
      </Panel>
    </div>
  );
}
