// What an object was made of and what was made of it: from datasets over features,
// training and models to deployments, and of each column where its values came from
// and where they go.
import { NativeSelect } from '@mantine/core';
import { useLayoutEffect, useMemo, useRef, useState, type CSSProperties } from 'react';
import { Link, useSearchParams } from 'wouter';
import type { Graph, GraphNode } from '../api/client';
import { useLineage, type Way } from '../api/queries';
import { kindName, lineageOf, placeOf } from '../frame/places';
import { Icon } from '../parts/Icon';
import { boxWidth, columnEdges, columnKey, columnOf, draw, headHeight, rowHeight, trace, type Box, type ColumnEdge, type Trace } from '../parts/lineage';
import { Empty, Failed, Panel, StateBadge, Wait } from '../parts/State';

const ways = [
  { value: 'both', label: 'Upstream and downstream' },
  { value: 'up', label: 'Upstream' },
  { value: 'down', label: 'Downstream' },
];

export function LineagePage({ project, thing }: { project: string; thing: string }) {
  const [params] = useSearchParams();
  const namespace = params.get('namespace') ?? '';
  const [kind = '', ...rest] = thing.split(' ');
  const name = rest.join(' ');
  const [way, setWay] = useState<Way>('both');
  const graph = useLineage(project, kind, name, way, namespace);
  if (graph.isPending) return <Wait what="Loading the lineage …" />;
  if (graph.error) return <Failed error={graph.error} again={() => void graph.refetch()} />;
  return (
    <div className="detail">
      <div className="factline">
        <NativeSelect size="xs" aria-label="Which way" value={way} data={ways} onChange={(e) => setWay(e.currentTarget.value as Way)} />
        {!namespace && placeOf(project, kind, name) && kind !== 'model' && <Link className="act" href={placeOf(project, kind, name)!}>The page of {kindName(kind)} {name}</Link>}
      </div>
      <Around project={project} graph={graph.data} key={`${thing} ${namespace}`} />
    </div>
  );
}

const titleOf = (n: GraphNode) => (n.kind === 'job' && !n.foreign ? n.by || n.name : n.name);
const words = (n: GraphNode) => `${kindName(n.kind)} ${titleOf(n)}`;

function Around({ project, graph: g }: { project: string; graph: Graph }) {
  const [open, setOpen] = useState<ReadonlySet<string>>(new Set());
  const [chosen, setChosen] = useState('');
  const columns = useMemo(() => columnEdges(g), [g]);
  const traced = useMemo(() => (chosen ? trace(chosen, columns) : null), [chosen, columns]);
  const drawing = useMemo(() => draw(g, open, traced?.columns ?? new Set()), [g, open, traced]);
  const by = useMemo(() => new Map(drawing.boxes.map((b) => [b.node.id, b])), [drawing]);
  const view = useRef<HTMLDivElement>(null);
  const at = by.get(g.root);
  useLayoutEffect(() => {
    if (at && view.current) view.current.scrollLeft = at.x + boxWidth / 2 - view.current.clientWidth / 2;
  }, [g]); // once for each graph: then it is the reader's
  if (drawing.boxes.length < 2) return <Empty title="Nothing is known around it">It was made of nothing that Falaj knows, and nothing was made of it yet, as far as you may see.</Empty>;
  const toggle = (id: string) => setOpen((was) => (was.has(id) ? new Set([...was].filter((o) => o !== id)) : new Set(was).add(id)));
  const known = new Set(columns.flatMap((e) => [e.from, e.to]));
  return (
    <>
      <Panel
        title="From where, and where to" wide
        note={[g.more && 'The graph is truncated: show the lineage of one of these objects.', drawing.left > 0 && `${drawing.left} more distant objects are not drawn.`].filter(Boolean).join(' ') || 'Choose a column to see upstream and what it feeds.'}
      >
        <div className="lineage" ref={view} tabIndex={0} role="group" aria-label="Graph, from left to right">
          <div className={traced ? 'canvas traced' : 'canvas'} style={{ width: drawing.width, height: drawing.height }}>
            <svg width={drawing.width} height={drawing.height} aria-hidden="true">
              {drawing.edges.map(([a, b]) => <path key={`${a.node.id} ${b.node.id}`} className="edge" d={curve(a.x + boxWidth, a.y + headHeight / 2, b.x, b.y + headHeight / 2)} />)}
              {traced && drawnColumns(traced, by).map(({ key, d, decides }) => <path key={key} className={decides ? 'decides' : 'values'} d={d} />)}
            </svg>
            <ul>
              {drawing.boxes.map((b) => (
                <NodeBox key={b.node.id} project={project} box={b} root={g.root} open={open.has(b.node.id)} toggle={() => toggle(b.node.id)} known={known} chosen={chosen} traced={traced} choose={(key) => setChosen(key === chosen ? '' : key)} graph={g} />
              ))}
            </ul>
          </div>
        </div>
      </Panel>
      {traced && <Traced graph={g} chosen={chosen} traced={traced} />}
    </>
  );
}

function NodeBox({ project, box: b, root, open, toggle, known, chosen, traced, choose, graph }: {
  project: string; box: Box; root: string; open: boolean; toggle: () => void; known: ReadonlySet<string>; chosen: string; traced: Trace | null; choose: (key: string) => void; graph: Graph;
}) {
  const n = b.node;
  const namespace = n.foreign ? n.namespace : '';
  const place = n.foreign ? lineageOf(project, n.kind, n.name, namespace) : placeOf(project, n.kind, n.name);
  const made = (graph.edges ?? []).filter((e) => e.to === n.id).length;
  const far = traced && !b.fields.some((f) => traced.columns.has(columnKey(n.id, f)));
  const style: CSSProperties = { left: b.x, top: b.y, width: boxWidth, height: b.height };
  return (
    <li className={`node ${n.kind}${n.id === root ? ' root' : ''}${far ? ' far' : ''}`} style={style} aria-label={`${words(n)}, made of ${made}`} aria-current={n.id === root || undefined}>
      <div className="head">
        <span className="kind">
          {n.foreign ? `${kindName(n.kind)}, external (OpenLineage)` : kindName(n.kind)}
          {n.state && n.state !== 'accepted' && <StateBadge state={n.state.toLowerCase()} />}
        </span>
        <span className="name">
          {place ? <Link href={place} title={n.name}>{titleOf(n)}</Link> : <span title={n.name}>{titleOf(n)}</span>}
          {n.id !== root && n.kind !== 'model' && !n.foreign && <Link className="around" href={lineageOf(project, n.kind, n.name)} aria-label={`Lineage around ${words(n)}`} title="Lineage around this"><Icon name="lineage" size={14} /></Link>}
        </span>
      </div>
      {b.fields.map((f) => {
        const key = columnKey(n.id, f);
        const state = key === chosen ? ' chosen' : traced?.columns.has(key) ? ' on' : '';
        return known.has(key) ? (
          <button key={f} type="button" className={`field${state}`} aria-pressed={key === chosen} aria-label={`Column ${f} of ${words(n)}`} title={f} onClick={() => choose(key)}>{f}</button>
        ) : (
          <span key={f} className="field" title={`${f}: nothing is known about this column`}>{f}</span>
        );
      })}
      {(b.more > 0 || open) && <button type="button" className="field more" aria-expanded={open} aria-label={`${open ? 'Fewer' : `${b.more} more`} columns of ${words(n)}`} onClick={toggle}>{open ? 'fewer' : `${b.more} more`}</button>}
    </li>
  );
}

/** A column by its key: "temp of weather@3". */
function Place({ graph, at }: { graph: Graph; at: string }) {
  const [id, field] = columnOf(at);
  const n = graph.nodes?.find((o) => o.id === id);
  return <><strong>{field}</strong> of {n ? words(n) : id}</>;
}

/** The same as the picture, in words. */
function Traced({ graph, chosen, traced: t }: { graph: Graph; chosen: string; traced: Trace }) {
  const list = (edges: ColumnEdge[], end: 'from' | 'to', none: string) =>
    edges.length === 0 ? <p className="dim">{none}</p> : (
      <ul className="why">
        {[...new Map(edges.map((e) => [e[end], e])).values()].map((e) => <li key={e[end]}><Place graph={graph} at={e[end]} /> {e.how && e.how !== 'identity' && <span className="dim">{e.how}</span>}</li>)}
      </ul>
    );
  return (
    <Panel title="Column" wide note={<Place graph={graph} at={chosen} />}>
      <div className="split even" role="status">
        <div><h3>Came from</h3>{list(t.up, 'from', 'Nothing that is known: here it begins.')}{t.decided.length > 0 && <><h4>Decided by</h4>{list(t.decided, 'from', '')}</>}</div>
        <div><h3>Feeds</h3>{list(t.down, 'to', 'Nothing that is known.')}</div>
      </div>
    </Panel>
  );
}

const curve = (x1: number, y1: number, x2: number, y2: number) => {
  const bend = Math.max(30, Math.abs(x2 - x1) / 2);
  return `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`;
};

/** The middle of a column's row. */
const rowOf = (b: Box, field: string) => b.y + headHeight + (b.fields.indexOf(field) + 0.5) * rowHeight;

/** Lines from column to column; a way that another drawn one goes over is left out. */
function drawnColumns(t: Trace, by: Map<string, Box>) {
  const all = [...t.up, ...t.down, ...t.decided];
  const next = new Map<string, string[]>();
  for (const e of all) if (!e.decides) next.set(e.from, [...(next.get(e.from) ?? []), e.to]);
  const over = (e: ColumnEdge) => {
    const seen = new Set(next.get(e.from)?.filter((k) => k !== e.to));
    for (const k of seen) for (const o of next.get(k) ?? []) seen.add(o);
    return seen.has(e.to);
  };
  return all.flatMap((e) => {
    const [[from, f], [to, g]] = [columnOf(e.from), columnOf(e.to)];
    const [a, b] = [by.get(from), by.get(to)];
    if (!a || !b || !a.fields.includes(f) || !b.fields.includes(g) || (!e.decides && over(e))) return [];
    return [{ key: `${e.from} ${e.to} ${e.decides}`, d: curve(a.x + boxWidth, rowOf(a, f), b.x, rowOf(b, g)), decides: e.decides }];
  });
}
