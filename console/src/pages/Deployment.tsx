import { useQuery } from '@tanstack/react-query';
import { NativeSelect } from '@mantine/core';
import { useMemo, useState } from 'react';
import { Link } from 'wouter';
import { get, inProject } from '../api/client';
import type { Act, Counted, Deployment, Monitor, Progress, Rollout, Status, Summaries, Target, Window } from '../api/monitoring';
import { useBaseline, useDeployment, useMonitor, useProgress, useStatus, useWindows } from '../api/queries';
import { lineageOf, pathOf } from '../frame/places';
import { useZone } from '../frame/settings';
import { formOf, Histogram, IntervalChart, MetricChart, metricOf, StatisticChart, whenOf } from '../parts/charts';
import { bars, find, mainly, rowsOf, scoreName, since } from '../parts/drift';
import { count, ms, number, percent, signed, time } from '../parts/format';
import { Heatmap } from '../parts/Heatmap';
import { Empty, Failed, Panel, StateBadge, Tag, Wait } from '../parts/State';
import { Time } from '../parts/Time';
import { Weights } from '../parts/Weights';
import { targetsOf } from './Deployments';

export function DeploymentPage({ project, name }: { project: string; name: string }) {
  const deployment = useDeployment(project, name);
  const status = useStatus(project, name);
  const monitor = useMonitor(project, name);
  const tried = status.data?.rollout ?? status.data?.history?.[0]; // the newest rollout, running or not
  const progress = useProgress(project, name, tried?.id ?? '');
  const p = tried && progress.data?.rollout === tried.id ? progress.data : undefined;
  const watched = !!monitor.data;
  const windows = useWindows(project, name, watched);
  const [version, setVersion] = useState(0); // 0: at each time, the one that answered most
  const all = windows.data;
  const versions = useMemo(() => [...new Set(all?.map((w) => w.version) ?? [])].sort((a, b) => b - a), [all]);
  const shown = useMemo(() => (versions.includes(version) ? all!.filter((w) => w.version === version) : mainly(all ?? [])), [all, version, versions]);
  if (deployment.isPending) return <Wait what="Loading the deployment …" />;
  if (deployment.error) return <Failed error={deployment.error} again={() => void deployment.refetch()} />;
  const d = deployment.data;
  const s = status.data;
  return (
    <div className="detail">
      <Facts project={project} d={d} s={s} m={monitor.data ?? undefined} />
      <Panel title="Versions" note={s && <>Requests and latency since <Time at={s.since} />{s.lost > 0 && <strong> {count(s.lost)} predictions could not be logged.</strong>}</>} wide>
        {status.error ? <Failed error={status.error} again={() => void status.refetch()} /> : <Targets targets={s?.versions?.length ? s.versions : targetsOf(d)} />}
      </Panel>
      <Panel title="Rollout" note={tried && <RolloutNote r={tried} p={p} />} wide>
        {tried && (s?.rollout || p) ? <Trial r={tried} p={p} /> : (
          <Empty title="No rollout is running" command={`falaj deploy canary ${name} --version N --weight 20`}>
            A canary answers a share of the requests until labels show whether it is at least as good. Then it takes over, or it is rolled back.
          </Empty>
        )}
      </Panel>
      <Drift versions={versions} version={version} setVersion={setVersion} project={project} name={name} monitor={monitor.data} windows={shown} error={monitor.error ?? windows.error} loading={monitor.isPending || (watched && windows.isPending)} />
      <Performance windows={shown} />
      <History project={project} rollouts={s?.history ?? []} acts={s?.acts ?? []} automation={s?.automation} name={name} />
    </div>
  );
}

function Facts({ project, d, s, m }: { project: string; d: Deployment; s?: Status; m?: Monitor }) {
  return (
    <dl className="facts">
      <div><dt>State</dt><dd><StateBadge state={d.state} />{d.reason && <span className="dim"> {d.reason}</span>}</dd></div>
      <div><dt>Model</dt><dd>{d.model} <Tag>v{d.version}</Tag></dd></div>
      <div><dt>Lineage</dt><dd><Link href={lineageOf(project, 'deployment', d.name)}>upstream</Link></dd></div>
      <div>
        <dt>Monitor</dt>
        <dd>
          {m ? <StateBadge state={m.state} title={m.reason} /> : <span className="faint">none</span>}
          {m?.since && m.state !== 'ok' && <span className="dim"> since <Time at={m.since} form="date" /></span>}
        </dd>
      </div>
      <div><dt>Automation</dt><dd>{s?.automation ? (s.automation.on ? 'on' : <span title={s.automation.reason}>off <span className="dim">{s.automation.reason}</span></span>) : <span className="faint">–</span>}</dd></div>
      <div><dt>Residency</dt><dd>{d.residency?.join(', ') || 'home'} <Tag>{d.classification}</Tag></dd></div>
      <div><dt>Changed</dt><dd><Time at={d.updated_at} /></dd></div>
    </dl>
  );
}

function Targets({ targets }: { targets: readonly (Target & Partial<Counted>)[] }) {
  return (
    <>
      <Weights targets={targets} words={false} />
      <table className="plain">
        <thead>
          <tr><th scope="col">Version</th><th scope="col">Role</th><th scope="col">State</th><th scope="col" className="right">Weight</th><th scope="col" className="right">Requests</th><th scope="col" className="right">Failed</th><th scope="col" className="right">Median</th><th scope="col" className="right">99th percentile</th></tr>
        </thead>
        <tbody>
          {targets.map((t) => (
            <tr key={`${t.version} ${t.role}`}>
              <th scope="row" className="num">v{t.version}</th>
              <td>{t.role ? <span className={`role ${t.role}`}>{t.role}</span> : <span className="faint">before</span>}</td>
              <td>{t.state && <StateBadge state={t.state} />}{t.remote && <span className="dim"> on {t.remote}, in {t.zone}</span>}{t.reason && <span className="dim"> {t.reason}</span>}</td>
              <td className="right num">{t.role === 'shadow' ? 'copies' : t.role ? `${t.weight} %` : '–'}</td>
              <td className="right num">{count(t.requests)}</td>
              <td className="right num">{count(t.failures)}{!!t.failures && !!t.requests && <span className="dim"> {percent(t.failures / t.requests, 1)}</span>}</td>
              <td className="right num">{ms(t.requests ? t.p50_ns! / 1e6 : null)}</td>
              <td className="right num">{ms(t.requests ? t.p99_ns! / 1e6 : null)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </>
  );
}

const RolloutNote = ({ r, p }: { r: Rollout; p?: Progress }) => (
  <>{r.state !== 'running' && <><StateBadge state={r.state} /> </>}v{r.candidate} against v{r.stable}, {r.weight} % of the requests, {r.state === 'running' ? 'since' : 'from'} <Time at={r.started_at && !r.started_at.startsWith('0001') ? r.started_at : r.started} />{p?.newest && <>; evaluated up to <Time at={p.newest} /></>}</>
);

function Trial({ r, p }: { r: Rollout; p?: Progress }) {
  const d = p?.decision;
  const points = p?.trajectory ?? [];
  const metric = r.spec.metric ?? 'brier';
  const labels = (n = 0) => (
    <>{count(n)} {n < (r.spec.min_labels ?? 500) && <span className="dim">of at least {count(r.spec.min_labels ?? 500)}</span>}</>
  );
  return (
    <div className="split">
      <div>
        {d && points.length > 1 ? (
          <IntervalChart points={points} decision={d} metric={metric} />
        ) : (
          <Empty title="No labels">The confidence interval of the difference appears when both versions have labels. Send labels with <code>falaj deploy label</code>.</Empty>
        )}
        <p className="caption dim">Difference of the mean {metric.replaceAll('_', ' ')}, canary minus stable; below zero the canary is better. The confidence sequence contains the true difference at all times{d && <> with {percent(1 - d.alpha)} confidence</>}. The canary is promoted when the whole band is below the margin, and rolled back when the whole band is above zero.</p>
      </div>
      <dl className="stats">
        <div className="both"><dt>{r.state === 'running' ? 'Now' : 'Why it ended'}</dt><dd>{(r.state === 'running' ? d?.reason : r.reason || d?.reason) || 'Not evaluated yet.'}</dd></div>
        {d?.comparable && <div className="both"><dt>Difference</dt><dd className="num"><strong>{signed(d.difference)}</strong> <span className="dim">{signed(d.low)} to {signed(d.high)}</span></dd></div>}
        <div><dt>Margin</dt><dd className="num">{signed(d?.margin ?? r.spec.margin ?? 0.005)}</dd></div>
        <div><dt>Labels, stable</dt><dd className="num">{labels(p?.stable?.loss?.n)}</dd></div>
        <div><dt>Labels, candidate</dt><dd className="num">{labels(p?.candidate?.loss?.n)}</dd></div>
        {p?.candidate && <div><dt>Requests, candidate</dt><dd className="num">{count(p.candidate.requests)}{p.candidate.errors > 0 && <span className="dim"> {count(p.candidate.errors)} failed</span>}</dd></div>}
        {d && <div><dt>Sample ratio</dt><dd className="num">{d.srm < 0.01 ? <StateBadge state="failed" /> : 'yes'} <span className="dim">p {number(d.srm)}</span></dd></div>}
        {d && <div><dt>p of “worse by the margin”</dt><dd className="num">{number(d.p)}</dd></div>}
      </dl>
    </div>
  );
}

function Drift({ project, name, monitor, windows, error, loading, versions, version, setVersion }: { versions: readonly number[]; version: number; setVersion: (v: number) => void; project: string; name: string; monitor?: Monitor | null; windows: readonly Window[]; error: unknown; loading: boolean }) {
  const zone = useZone();
  const rows = useMemo(() => rowsOf(windows), [windows]);
  const [choice, setChoice] = useState<{ feature: string; window: string }>();
  const feature = choice && rows.includes(choice.feature) ? choice.feature : (rows.find((r) => r !== scoreName && windows.at(-1) && find(windows.at(-1)!, r)?.drifted) ?? rows[0] ?? '');
  const window = windows.find((w) => w.id === choice?.window) ?? windows.at(-1);
  const baseline = useBaseline(project, name, window?.version ?? 0);
  const summaries = useQuery({
    queryKey: ['monitor', project, name, 'windows', window?.id ?? ''],
    queryFn: ({ signal }) => get<Summaries>(inProject(project, 'monitors', name, 'windows', window!.id), signal),
    enabled: !!window,
    staleTime: 60_000,
  });
  const note = monitor && windows.length > 0 && (
    <>
      {monitor.reason?.replace(/\.?$/, '.')}{monitor.watermark && <> Records up to <Time at={monitor.watermark} />.</>}
      {monitor.problem && <strong> {monitor.problem}</strong>}
    </>
  );
  const body = () => {
    if (error) return <Failed error={error} />;
    if (loading) return <Wait what="Loading the monitor …" />;
    if (!monitor) {
      return <Empty title="No monitor" command={`falaj apply -f monitor.yaml\n\n# monitor.yaml\napi_version: falaj/v1\nkind: Monitor\nname: ${name}`}>A monitor compares the inputs of the model with its training set.</Empty>;
    }
    if (windows.length === 0 || !window) {
      return <Empty title="No closed windows">{monitor.reason || `The first window closes when ${monitor.spec.window?.every ?? `${monitor.spec.window?.rows ?? ''} rows`} of records have arrived.`}</Empty>;
    }
    const f = find(window, feature);
    const start = since(windows, feature);
    const of = (columns?: { name: string; summary: object }[] | null, score?: { summary: object } | null) => (feature === scoreName ? score?.summary : columns?.find((c) => c.name === feature)?.summary);
    const drawn = bars(of(baseline.data?.columns, baseline.data?.score), of(summaries.data?.columns, summaries.data?.scores), (n) => number(n));
    return (
      <>
        {versions.length > 1 && (
          <div className="tools">
            <NativeSelect
              size="xs" aria-label="Version" value={String(version)} onChange={(e) => setVersion(Number(e.currentTarget.value))}
              data={[{ value: '0', label: 'the version with the most predictions' }, ...versions.map((v) => ({ value: String(v), label: `version ${v}` }))]}
            />
          </div>
        )}
        <Heatmap windows={windows} rows={rows} feature={feature} window={window.id} choose={(to, w) => setChoice({ feature: to, window: w || window.id })} />
        <div className="chosen">
          <h3>
            {feature === scoreName ? 'The score' : feature}
            {f && <StateBadge state={f.drifted ? 'drifted' : 'ok'} />}
            <span className="dim">{whenOf(window, zone)}, v{window.version}, {count(window.rows)} rows{start && <>; drifted since {time(start, zone, formOf(window))}</>}</span>
          </h3>
          <div className="split even">
            <div>
              <h4>{f?.method?.replaceAll('_', ' ') ?? 'Statistic'} by window</h4>
              <StatisticChart windows={windows} feature={feature} chosen={window} />
              {f && (
                <p className="caption dim num">
                  {number(f.statistic)}{f.p_value != null ? <>, p {number(f.p_value)}, drifted below {number(f.threshold)}</> : <>, drifted above {number(f.threshold)}</>}.
                  Mean {number(f.mean)}, in training {number(f.baseline_mean)}. Missing {percent(f.missing, 1)}, in training {percent(f.baseline_missing, 1)}. {f.note}
                </p>
              )}
            </div>
            <div>
              <h4>Values <span className="legend"><i className="base" /> training <i className="now" /> window</span></h4>
              {drawn ? <Histogram bars={drawn} name={feature} /> : baseline.isPending || summaries.isPending ? <Wait what="Loading the values …" /> : <p className="dim">No distribution available{baseline.data?.note ? `: ${baseline.data.note}` : '.'}</p>}
              {baseline.data && <p className="caption dim">Compared with {baseline.data.source} {baseline.data.ref}, {count(baseline.data.rows)} rows.</p>}
            </div>
          </div>
        </div>
      </>
    );
  };
  return <Panel title="Drift" note={note || undefined} wide>{body()}</Panel>;
}

function Performance({ windows }: { windows: readonly Window[] }) {
  const names = useMemo(() => [...new Set(windows.flatMap((w) => w.performance.metrics?.map((m) => m.name) ?? []))], [windows]);
  const [chosen, setChosen] = useState('');
  const newest = windows.at(-1);
  if (!newest) return null;
  const name = names.includes(chosen) ? chosen : names[0];
  const judged = name ? windows.findLast((w) => metricOf(w, name, false)?.value != null) : undefined;
  const value = judged && name ? metricOf(judged, name, false) : undefined;
  return (
    <Panel title="Performance" note={newest.performance.state} wide>
      {name ? (
        <>
          <div className="tools">
            <NativeSelect size="xs" aria-label="Metric" data={names} value={name} onChange={(e) => setChosen(e.currentTarget.value)} />
            <span className="legend"><i className="line" /> with labels, 95 % interval <i className="line dash" /> estimated without labels</span>
            {value && <span className="num">newest <strong>{number(value.value)}</strong> <span className="dim">{number(value.low)} to {number(value.high)}</span> {value.breached && <StateBadge state="degraded" />}</span>}
          </div>
          <MetricChart windows={windows} name={name} key={name} />
          {judged && <Segments window={judged} metric={name} />}
        </>
      ) : (
        <Empty title="No labels">Performance is computed when labels arrive. Send labels with <code>falaj deploy label</code>.</Empty>
      )}
    </Panel>
  );
}

const segmentsShown = 30;

/** The metric of the newest labelled window by the values of a column, the most rows first. */
function Segments({ window: w, metric }: { window: Window; metric: string }) {
  const all = (w.performance.segments ?? []).toSorted((a, b) => b.rows - a.rows);
  if (all.length === 0) return null;
  return (
    <details>
      <summary>By segment, in the window that ended <Time at={w.to} form={formOf(w)} /></summary>
      <table className="plain">
        <thead><tr><th scope="col">Segment</th><th scope="col" className="right">Rows</th><th scope="col" className="right">{metric}</th><th scope="col" className="right">95 % interval</th></tr></thead>
        <tbody>
          {all.slice(0, segmentsShown).map((s) => {
            const m = s.metrics?.find((x) => x.name === metric && !x.estimate);
            return <tr key={`${s.column} ${s.value}`}><th scope="row">{s.column} = {s.value}</th><td className="right num">{count(s.rows)}</td><td className="right num">{number(m?.value)}</td><td className="right num dim">{number(m?.low)} to {number(m?.high)}</td></tr>;
          })}
        </tbody>
      </table>
      {all.length > segmentsShown && <p className="dim small">The {segmentsShown} largest of {all.length}.</p>}
    </details>
  );
}

function History({ project, rollouts, acts, automation, name }: { project: string; rollouts: readonly Rollout[]; acts: readonly Act[]; automation?: Status['automation']; name: string }) {
  const entries = useMemo(
    () =>
      [
        ...rollouts.filter((r) => r.state !== 'running').map((r) => ({ id: r.id, at: r.ended || r.started, what: `v${r.candidate} against v${r.stable}`, kind: 'rollout', state: r.state as string, reason: r.reason, cause: r.cause, evidence: r.evidence, result: '', clock: r.started_at })),
        ...acts.map((a) => ({ id: a.id, at: a.made, what: a.kind, kind: 'automatic', state: a.outcome as string, reason: a.reason, cause: a.cause, evidence: a.evidence, result: a.result, clock: a.at })),
      ].sort((a, b) => b.at.localeCompare(a.at)),
    [rollouts, acts],
  );
  return (
    <Panel title="History" note={automation && !automation.on ? `Automation is disabled: ${automation.reason ?? 'automation is off'}.` : 'Rollouts and automatic acts, newest first'} wide>
      {entries.length === 0 ? (
        <Empty title="No rollouts or automatic acts" command={`falaj deploy status ${name}`}>Ended rollouts and automatic acts are listed here with their evidence.</Empty>
      ) : (
        <ol className="history">
          {entries.map((e) => (
            <li key={e.id}>
              <Time at={e.at} />
              <div>
                <p><Tag>{e.kind}</Tag> <strong>{e.what}</strong> <StateBadge state={e.state} /> {e.result && <span className="num">{e.result.startsWith('job_') ? <Link href={pathOf(project, 'jobs', e.result)}>{e.result}</Link> : e.result}</span>}</p>
                {e.reason && <p>{e.reason}</p>}
                {(e.cause || e.clock) && <p className="dim small">{e.cause && <>Cause: {e.cause}. </>}{e.clock && <>Event time: <Time at={e.clock} />.</>}</p>}
                {e.evidence != null && (
                  <details>
                    <summary>Evidence</summary>
                    <pre>{JSON.stringify(e.evidence, null, 2)}</pre>
                  </details>
                )}
              </div>
            </li>
          ))}
        </ol>
      )}
    </Panel>
  );
}
