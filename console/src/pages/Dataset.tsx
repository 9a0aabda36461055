import { Button } from '@mantine/core';
import { useState } from 'react';
import { Link } from 'wouter';
import type { ColumnProfile, DatasetProfile, Verdict, Version } from '../api/client';
import { useDatasetProfile, useVersion, useVersions } from '../api/queries';
import { lineageOf, pathOf } from '../frame/places';
import { scaleOf } from '../parts/drift';
import { count, number, percent } from '../parts/format';
import { Failed, Panel, StateBadge, Tag, Wait } from '../parts/State';
import { Time } from '../parts/Time';

/** A version of a dataset: what it is, how its expectations fared, what its columns look like. */
export function DatasetPage({ project, reference }: { project: string; reference: string }) {
  const [name = '', number] = reference.split('@');
  const versions = useVersions(project, name);
  const newest = versions.data?.items?.[0]?.version;
  const wanted = number ? Number(number) : newest;
  const version = useVersion(project, name, wanted);
  if (versions.isPending || (wanted && version.isPending)) return <Wait what="Loading the dataset …" />;
  const error = versions.error ?? version.error;
  if (error) return <Failed error={error} again={() => void Promise.all([versions.refetch(), version.refetch()])} />;
  const v = version.data;
  if (!v) return <Failed error={new Error(`${name} has no version${number ? ` ${number}` : ''}.`)} />;
  return (
    <div className="detail">
      <dl className="facts">
        <div><dt>Version</dt><dd>{v.name}@{v.version}</dd></div>
        <div><dt>State</dt><dd><StateBadge state={v.state} /></dd></div>
        <div><dt>Rows</dt><dd className="num">{count(v.rows)}</dd></div>
        {!!v.quarantined && <div><dt>In quarantine</dt><dd className="num">{count(v.quarantined)}</dd></div>}
        <div><dt>Classification</dt><dd>{v.classification}, {v.protection}</dd></div>
        <div><dt>May be in</dt><dd>{v.residency?.join(', ') || 'home'}</dd></div>
        <div><dt>Made</dt><dd><Time at={v.created_at} /></dd></div>
        <div><dt>Lineage</dt><dd><Link href={lineageOf(project, 'dataset', `${v.name}@${v.version}`)}>upstream and downstream</Link></dd></div>
      </dl>
      <nav className="versions wide" aria-label="Versions">
        {versions.data?.items?.map((o) => (
          <Link key={o.version} href={pathOf(project, 'datasets', `${name}@${o.version}`)} aria-current={o.version === v.version ? 'page' : undefined} title={`${o.state}, ${count(o.rows)} rows`}>
            @{o.version}{o.state !== 'accepted' && <span className="dim"> {o.state}</span>}
          </Link>
        ))}
      </nav>
      {v.reason && <Panel title="Why it is rejected" wide><p>{v.reason}</p></Panel>}
      {(v.expectations?.length ?? 0) > 0 && <Expectations project={project} version={v} />}
      {v.state !== 'deleted' && <Columns project={project} version={v} key={v.id} />}
    </div>
  );
}

function Expectations({ project, version: v }: { project: string; version: Version }) {
  return (
    <Panel title="Expectations" wide note={!!v.quarantined && <>quarantined rows, with reasons: <code>falaj dataset quarantine {v.name}@{v.version} -p {project}</code></>}>
      <table className="plain verdicts">
        <thead><tr><th scope="col">Check</th><th scope="col">Of</th><th scope="col">Outcome</th><th scope="col" className="right">Checked</th><th scope="col" className="right">Failed</th><th scope="col">Found</th></tr></thead>
        <tbody>
          {v.expectations?.map((e, i) => (
            <tr key={i}>
              <th scope="row">{e.expectation.check}</th>
              <td>{e.expectation.column ?? e.expectation.columns?.join(', ') ?? 'the table'}</td>
              <td><StateBadge state={outcome(e)} /></td>
              <td className="num right">{count(e.checked)}</td>
              <td className="num right">{count(e.failed)}</td>
              <td>{found(e)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Panel>
  );
}

/** What holds for `mostly` of the rows may fail for some, which stay in the version. */
function outcome(e: Verdict) {
  if (!e.passed) return 'failed';
  return e.failed && e.expectation.otherwise === 'quarantine' ? 'quarantined' : 'ok';
}

function found(e: Verdict) {
  const first = e.examples?.[0];
  const at = first && `first at row ${count(first.row)}${first.hidden ? '' : `: ${first.value}`}`;
  return [e.problem ?? e.note, e.against && `by ${e.against}`, at].filter(Boolean).join('; ');
}

/** The columns; of classified data only when asked, since the read is journaled. names: those of them that are shown, and as what. */
export function Columns({ project, version: v, names, title = 'Columns', of }: { project: string; version: Version; names?: ReadonlyMap<string, string>; title?: string; of?: string }) {
  const journaled = v.classification === 'confidential' || v.classification === 'restricted';
  const [asked, setAsked] = useState(!journaled);
  const profile = useDatasetProfile(project, `${v.name}@${v.version}`, asked);
  const p = profile.data;
  return (
    <Panel title={title} wide note={[of, p && p.sampled < p.rows && `Quantiles, histograms and frequent values are of ${count(p.sampled)} rows, a random sample.`].filter(Boolean).join(' ') || undefined}>
      {!asked && (
        <p>
          The data is {v.classification}: reads of its values are recorded. <Button size="xs" variant="default" onClick={() => setAsked(true)}>Show the columns</Button>
        </p>
      )}
      {asked && profile.isPending && <Wait what="Loading the columns …" />}
      {profile.error && <Failed error={profile.error} again={() => void profile.refetch()} />}
      {p && <div className="columns">{p.columns?.filter((c) => !names || names.has(c.column)).map((c) => <Column key={c.column} column={names ? { ...c, column: names.get(c.column)! } : c} profile={p} />)}</div>}
    </Panel>
  );
}

function Column({ column: c, profile: p }: { column: ColumnProfile; profile: DatasetProfile }) {
  const facts = [
    `${c.distinct_estimated ? 'about ' : ''}${count(c.distinct)} distinct`,
    c.nulls > 0 && `${percent(c.nulls / Math.max(1, p.rows), 1)} null`,
    !!c.nans && `${count(c.nans)} NaN`,
    c.mean != null && c.std != null && `mean ${number(c.mean, 4)} ± ${number(c.std, 3)}`,
  ].filter(Boolean);
  return (
    <section className="column" aria-label={`Column ${c.column}`}>
      <h3 title={c.column}>{c.column} <Tag>{c.type}</Tag></h3>
      <p className="dim num">{facts.join(' · ')}</p>
      {c.histogram ? <Heights column={c} /> : c.top?.length ? <Frequent column={c} /> : <p className="faint">no values</p>}
    </section>
  );
}

/** Long times are told without what all have: a midnight, the zone. */
const short = (text: string | undefined) => (text ?? '').replace(/T00:00:00Z$/, '').replace(/T(\d\d:\d\d):\d\d(\.\d+)?Z$/, ' $1').replace(/^(-?\d+\.\d{4})\d+$/, '$1');

/** A histogram of one column; each bar has its bounds and share as its title. The outermost bars also have what lies beyond the edges, which are the 1st and the 99th percentile. */
function Heights({ column: c }: { column: ColumnProfile }) {
  const { edges, shares } = c.histogram!;
  const most = Math.max(...(shares ?? []), 1e-9);
  const scale = scaleOf(edges ?? [], c.min, c.max);
  const last = (shares?.length ?? 0) - 1;
  return (
    <figure className="histogram small" aria-label={`Shares of the values of ${c.column} from ${short(c.min)} to ${short(c.max)}`}>
      <div className="bars">
        {shares?.map((s, i) => (
          <div key={i} className="pair" title={`${short(i === 0 ? (c.min ?? edges?.[i]) : edges?.[i])} … ${short(i === last ? (c.max ?? edges?.[i + 1]) : edges?.[i + 1])}\n${percent(s, 1)}`}>
            <span className="now" style={{ height: `${(s / most) * 100}%` }} />
          </div>
        ))}
      </div>
      <div className="scale num"><span title={`least ${short(c.min)}`}>{scale.from.mark}{short(scale.from.edge)}</span><span title={`greatest ${short(c.max)}`}>{scale.to.mark}{short(scale.to.edge)}</span></div>
    </figure>
  );
}

function Frequent({ column: c }: { column: ColumnProfile }) {
  const most = Math.max(...c.top!.map((v) => v.share), 1e-9);
  return (
    <ul className="frequent" aria-label={`Frequent values of ${c.column}`}>
      {c.top!.slice(0, 6).map((v) => (
        <li key={v.value}>
          <span className="name" title={v.value}>{v.value}</span>
          <span className="bar"><span style={{ width: `${(v.share / most) * 100}%` }} /></span>
          <span className="num">{percent(v.share, 1)}</span>
        </li>
      ))}
    </ul>
  );
}
