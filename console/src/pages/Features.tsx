// A feature view, and a feature service: how they are defined, what is online, that
// it is the same as its source, who may see what, and what uses them.
import { useQueries } from '@tanstack/react-query';
import { Link } from 'wouter';
import type { Definition, FeatureView, Freshness } from '../api/client';
import { featureView, freshness, useDefinitions, useFeatureService, useFeatureView, useFreshness, useLineage, useVersion, useVersions, useViewLineage } from '../api/queries';
import { kindsName, lineageOf, pathOf, placeOf } from '../frame/places';
import { count, span } from '../parts/format';
import { Failed, Panel, StateBadge, Tag, Wait } from '../parts/State';
import { Time } from '../parts/Time';
import { Columns } from './Dataset';

export function FeatureViewPage({ project, reference }: { project: string; reference: string }) {
  const view = useFeatureView(project, reference);
  if (view.isPending) return <Wait what="Loading the feature view …" />;
  if (view.error) return <Failed error={view.error} again={() => void view.refetch()} />;
  return <ViewDetail key={view.data.digest} project={project} view={view.data} />;
}

function ViewDetail({ project, view: v }: { project: string; view: FeatureView }) {
  const ref = `${v.name}@${v.version}`;
  const fresh = useFreshness(project, ref);
  return (
    <div className="detail">
      <dl className="facts">
        <div><dt>Version</dt><dd>{ref}</dd></div>
        <div><dt>Of</dt><dd>{v.entities?.join(', ')} <span className="dim">by {v.keys?.map((k) => k.name).join(', ')}</span></dd></div>
        <div><dt>Valid for</dt><dd>{v.ttl && v.ttl !== '0' ? v.ttl : 'ever'}</dd></div>
        <div><dt>Online</dt><dd>{fresh.data ? <OnlineState fresh={fresh.data} /> : '…'}</dd></div>
        <div><dt>Same as its source</dt><dd>{fresh.data ? <CheckState fresh={fresh.data} /> : '…'}</dd></div>
        <div><dt>Made</dt><dd><Time at={v.created_at} /></dd></div>
        <div><dt>Lineage</dt><dd><Link href={lineageOf(project, 'feature_view', ref)}>upstream and downstream</Link></dd></div>
      </dl>
      <Versions project={project} kind="feature_view" section="features" name={v.name} version={v.version} />
      <Panel title="Definition" wide note={v.description}>
        <Labels tags={v.tags} />
        {v.source.dataset ? <p>Rows of <Link href={pathOf(project, 'datasets', v.source.dataset)}>{v.source.dataset}</Link>{v.source.stream && ', which follows a stream'}; times are in <code>{v.timestamp}</code>{v.created_timestamp && <>, known since <code>{v.created_timestamp}</code></>}.</p> : (
          <>
            <pre className="source" tabIndex={0} aria-label="SQL">{v.source.sql}</pre>
            <p className="caption dim">over {Object.entries(v.source.inputs ?? {}).map(([table, dataset], i) => <span key={table}>{i > 0 && ', '}<Link href={pathOf(project, 'datasets', dataset)}>{dataset}</Link>{table !== dataset && ` as ${table}`}</span>)}; times are in <code>{v.timestamp}</code>{v.created_timestamp && <>, known since <code>{v.created_timestamp}</code></>}.</p>
          </>
        )}
        <table className="plain">
          <thead><tr><th scope="col">Feature</th><th scope="col">Type</th><th scope="col">Is</th><th scope="col">Seen</th><th scope="col">Description</th></tr></thead>
          <tbody>
            {v.features?.map((f) => (
              <tr key={f.name}><th scope="row">{f.name}</th><td>{f.type}</td><td>{howOf(v, f.name)}</td><td><Seen protect={f.protect} /></td><td className="dim">{f.description}</td></tr>
            ))}
          </tbody>
        </table>
      </Panel>
      <Panel title="Online" note="Current online values">
        {fresh.error ? <Failed error={fresh.error} again={() => void fresh.refetch()} /> : fresh.data && <OnlineFacts project={project} fresh={fresh.data} name={v.name} />}
      </Panel>
      <Panel title="Permissions">
        <Purposes purposes={v.purpose} />
        <p>{v.features?.some((f) => f.protect) ? <>Reading protected features in clear needs <code>feature.clear</code>; other principals read masked or pseudonymised values.</> : 'No feature is protected: permission to read the view includes all features.'}</p>
        {fresh.data?.materialised && <p>Online rows are {fresh.data.classification}, with residency {fresh.data.residency?.join(', ') || 'home'}.</p>}
      </Panel>
      <UsedBy project={project} kind="feature_view" name={ref} />
      <FeatureColumns project={project} view={v} fresh={fresh.data} />
    </div>
  );
}

/** How a feature comes from its source. */
function howOf(v: FeatureView, name: string) {
  const a = v.aggregations?.find((o) => o.name === name);
  return a ? `${a.function} of ${a.column || 'rows'} over ${a.window}` : 'the newest value';
}

function Seen({ protect }: { protect?: string }) {
  if (!protect) return <>as it is</>;
  return <Tag>{protect === 'mask' ? 'masked: NULL' : 'a pseudonym'}</Tag>;
}

function Purposes({ purposes }: { purposes?: string[] | null }) {
  return <p>{purposes?.length ? <>Read for {purposes.map((p) => <span key={p}><Tag>{p}</Tag> </span>)}only: each read must name one of these.</> : 'Read for any purpose.'}</p>;
}

const Labels = ({ tags }: { tags?: Record<string, string> }) => Object.entries(tags ?? {}).length > 0 && <p className="tags">{Object.entries(tags!).map(([k, v]) => <Tag key={k}>{k}={v}</Tag>)}</p>;

/** The versions of a definition, with their aliases. */
function Versions({ project, kind, section, name, version }: { project: string; kind: 'feature_view' | 'feature_service'; section: string; name: string; version: number }) {
  const all = useDefinitions(project, kind, name);
  const aliases = (d: Definition) => d.aliases?.filter((a) => a !== 'latest').join(', ');
  return (
    <nav className="versions wide" aria-label="Versions">
      {all.data?.items?.map((d) => (
        <Link key={d.version} href={pathOf(project, section, `${name}@${d.version}`)} aria-current={d.version === version ? 'page' : undefined} title={`made ${d.created_at}`}>
          @{d.version}{aliases(d) && <span className="dim"> {aliases(d)}</span>}
        </Link>
      ))}
    </nav>
  );
}

function OnlineState({ fresh: f }: { fresh: Freshness }) {
  const run = f.last_run;
  if (!f.materialised && !run) return <span className="dim">not materialised</span>;
  return (
    <>
      {run && run.state !== 'succeeded' ? <StateBadge state={run.state} title={run.error} /> : <StateBadge state="ready" />}
      {f.lag_ns ? <span className="dim num"> {span(f.lag_ns / 1e6)} behind</span> : null}
    </>
  );
}

function CheckState({ fresh: f }: { fresh: Freshness }) {
  const c = f.check;
  if (!c) return <span className="dim">not compared yet</span>;
  if (c.skipped) return <StateBadge state="skipped" title={c.skipped} />;
  return <><StateBadge state={c.mismatches ? 'failed' : 'ok'} /> <span className="dim num">{c.mismatches ? `${count(c.mismatches)} of ${count(c.values)} differ` : `${count(c.values)} values`}</span></>;
}

function OnlineFacts({ project, fresh: f, name }: { project: string; fresh: Freshness; name: string }) {
  const run = f.last_run;
  const c = f.check;
  if (!f.materialised && !run) return <p className="dim">Not materialised. <code>falaj feature materialise {name} -p {project}</code> brings it.</p>;
  return (
    <dl className="stats">
      <div><dt>Everything up to</dt><dd><Time at={f.watermark} /></dd></div>
      <div><dt>Newest event</dt><dd><Time at={f.newest_event} /></dd></div>
      <div className="both"><dt>Made from</dt><dd>{f.inputs?.length ? f.inputs.map((i) => <span key={i.table}><Link href={pathOf(project, 'datasets', i.dataset)}>{i.dataset}</Link> </span>) : <span className="dim">–</span>}</dd></div>
      {run && (
        <div className="both">
          <dt>Last materialisation</dt>
          <dd><StateBadge state={run.state} /> <span className="num">{count(run.rows)}</span> rows, <Time at={run.ended_at || run.started_at || run.created_at} relative />{run.error && <p className="dim">{run.error}</p>}</dd>
        </div>
      )}
      <div className="both">
        <dt>Verification against the source</dt>
        <dd>
          {!c ? <span className="dim">Not since the server started; it runs after each materialisation and periodically.</span> : c.skipped ? c.skipped : (
            <>{count(c.values)} values of {count(c.keys)} keys <Time at={c.at} relative />: {c.mismatches ? <strong>{count(c.mismatches)} differ, in {c.features?.join(', ')}</strong> : 'none differs'}{c.rounded ? `, ${count(c.rounded)} in the last digit` : ''}</>
          )}
        </dd>
      </div>
    </dl>
  );
}

const following = ['feature_service', 'dataset', 'job', 'model', 'deployment'];

/** What has features of it, as lineage tells. */
function UsedBy({ project, kind, name }: { project: string; kind: string; name: string }) {
  const graph = useLineage(project, kind, name, 'down');
  const nodes = graph.data?.nodes?.filter((n) => n.id !== graph.data?.root && !n.foreign) ?? [];
  const groups = following.map((k) => ({ kind: k, all: nodes.filter((n) => n.kind === k) })).filter((g) => g.all.length > 0);
  return (
    <Panel title="Used by" wide note={<Link href={lineageOf(project, kind, name)}>Lineage</Link>}>
      {graph.error ? <Failed error={graph.error} again={() => void graph.refetch()} /> : graph.isPending ? <Wait what="Loading the lineage …" /> : groups.length === 0 ? <p className="dim">No visible downstream objects.</p> : (
        <div className="users">
          {groups.map((g) => (
            <section key={g.kind} aria-label={kindsName(g.kind)}>
              <h3>{g.kind === 'dataset' ? 'Training sets' : kindsName(g.kind)}</h3>
              <ul className="why">
                {g.all.slice(0, 12).map((n) => <li key={n.id}><Link href={placeOf(project, n.kind, n.name) ?? ''}>{n.kind === 'job' ? n.by || n.name : n.name}</Link> {n.kind === 'model' && n.by && <Tag>{n.by}</Tag>}{n.state && n.state !== 'accepted' && <StateBadge state={n.state} />}</li>)}
                {g.all.length > 12 && <li className="dim">and {g.all.length - 12} more</li>}
              </ul>
            </section>
          ))}
        </div>
      )}
    </Panel>
  );
}

/** What the values of the features look like: in the dataset that they are columns of, else where they were joined last. */
function FeatureColumns({ project, view: v, fresh }: { project: string; view: FeatureView; fresh?: Freshness }) {
  const lineage = useViewLineage(project, `${v.name}@${v.version}`);
  const set = lineage.data?.training_sets?.[0];
  const plain = v.source.dataset && !v.aggregations?.length;
  const ref = plain ? (fresh?.inputs?.[0]?.dataset ?? v.source.dataset) : set?.dataset;
  const [name = '', number] = (ref ?? '').split('@');
  const newest = useVersions(project, name, !!ref && !number);
  const version = useVersion(project, name, number ? Number(number) : newest.data?.items?.[0]?.version);
  const used = set?.views?.find((u) => u.view === `${v.name}@${v.version}`)?.features ?? [];
  const names = new Map(plain ? v.features?.map((f) => [f.name, f.name]) : used.map((u) => [u.column, u.feature]));
  if (!ref) return <Panel title="Values" wide><p className="dim">Distributions are shown for training sets with these features; there are none yet.</p></Panel>;
  if (version.error) return <Panel title="Values" wide><Failed error={version.error} again={() => void version.refetch()} /></Panel>;
  return version.data ? <Columns project={project} version={version.data} names={names} title="Values" of={`As they are in ${version.data.name}@${version.data.version}.`} /> : null;
}

export function FeatureServicePage({ project, reference }: { project: string; reference: string }) {
  const service = useFeatureService(project, reference);
  const b = service.data;
  const views = [...new Set([...(b?.selected ?? []), ...(b?.used ?? [])].map((f) => f.split(':')[0]!))];
  const fresh = useQueries({ queries: views.map((v) => freshness(project, v)) });
  const specs = useQueries({ queries: views.map((v) => featureView(project, v)) });
  if (service.isPending) return <Wait what="Loading the feature service …" />;
  if (service.error || !b) return <Failed error={service.error} again={() => void service.refetch()} />;
  const ref = `${b.name}@${b.version}`;
  const fieldOf = (feature: string) => {
    const [view, name] = feature.split(':');
    return specs[views.indexOf(view!)]?.data?.features?.find((f) => f.name === name);
  };
  return (
    <div className="detail">
      <dl className="facts">
        <div><dt>Version</dt><dd>{ref}</dd></div>
        <div><dt>Features</dt><dd className="num">{count((b.selected?.length ?? 0) + (b.computed?.length ?? 0))}</dd></div>
        <div><dt>Purpose</dt><dd>{b.purpose ? <Tag>{b.purpose}</Tag> : 'any'}</dd></div>
        <div><dt>Made</dt><dd><Time at={b.created_at} /></dd></div>
        <div><dt>Lineage</dt><dd><Link href={lineageOf(project, 'feature_service', ref)}>upstream and downstream</Link></dd></div>
      </dl>
      <Versions project={project} kind="feature_service" section="services" name={b.name} version={b.version} />
      <Panel title="Features" wide note={b.description}>
        <Labels tags={b.tags} />
        <table className="plain">
          <thead><tr><th scope="col">Feature</th><th scope="col">Type</th><th scope="col">From</th><th scope="col">Seen</th></tr></thead>
          <tbody>
            {b.selected?.map((f) => {
              const [view = '', name = ''] = f.split(':');
              return <tr key={f}><th scope="row">{name}</th><td>{fieldOf(f)?.type ?? '–'}</td><td><Link href={pathOf(project, 'features', view)}>{view}</Link></td><td><Seen protect={fieldOf(f)?.protect} /></td></tr>;
            })}
            {b.computed?.map((c) => <tr key={c.name}><th scope="row">{c.name}</th><td>{c.type}</td><td><code>{c.expression}</code></td><td className="dim">as its operands</td></tr>)}
          </tbody>
        </table>
        {(b.request?.length ?? 0) > 0 && <p className="caption dim">A request brings {b.request!.map((r) => `${r.name} (${r.type})`).join(', ')}.</p>}
      </Panel>
      <Panel title="Views" wide note="Current online values">
        <table className="plain">
          <thead><tr><th scope="col">View</th><th scope="col">Online</th><th scope="col">Same as its source</th><th scope="col">Newest event</th><th scope="col">Read for</th></tr></thead>
          <tbody>
            {views.map((v, i) => {
              const f = fresh[i]?.data;
              return (
                <tr key={v}>
                  <th scope="row"><Link href={pathOf(project, 'features', v)}>{v}</Link></th>
                  <td>{f ? <OnlineState fresh={f} /> : fresh[i]?.error ? <span className="dim">{fresh[i]!.error!.message}</span> : '…'}</td>
                  <td>{f ? <CheckState fresh={f} /> : '…'}</td>
                  <td><Time at={f?.newest_event} relative /></td>
                  <td>{specs[i]?.data?.purpose?.join(', ') || 'anything'}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </Panel>
      <UsedBy project={project} kind="feature_service" name={ref} />
    </div>
  );
}
