// Where the boxes of a lineage graph are drawn, and what a column came from and
// feeds. Pure.
import type { Graph, GraphNode } from '../api/client';

export interface Box {
  node: GraphNode;
  layer: number;
  x: number;
  y: number;
  height: number;
  fields: string[]; // that are shown, in order
  more: number; // that are not
}

export interface Drawing {
  boxes: Box[];
  edges: [from: Box, to: Box][];
  width: number;
  height: number;
  left: number; // nodes that are not drawn
}

// px, as in the style sheet.
export const boxWidth = 226;
export const headHeight = 62;
export const rowHeight = 22;
const gap = { x: 64, y: 18 };
const most = 200; // boxes that are drawn
const few = 5; // columns that a box shows by itself

/** Edges without the ways from one dataset to another that also lead over something else. */
export function plainEdges(g: Graph): [string, string][] {
  const kinds = new Map((g.nodes ?? []).map((n) => [n.id, n.kind]));
  const next = new Map<string, Set<string>>();
  for (const e of g.edges ?? []) next.set(e.from, (next.get(e.from) ?? new Set()).add(e.to));
  const over = (from: string, to: string) => {
    const seen = new Set<string>();
    const queue = [...(next.get(from) ?? [])].filter((n) => kinds.get(n) !== 'dataset');
    for (let n = queue.pop(); n !== undefined; n = queue.pop()) {
      if (n === to) return true;
      if (seen.has(n) || kinds.get(n) === 'dataset') continue;
      seen.add(n);
      queue.push(...(next.get(n) ?? []));
    }
    return false;
  };
  return [...next].flatMap(([from, all]) => [...all].filter((to) => kinds.get(from) !== 'dataset' || kinds.get(to) !== 'dataset' || !over(from, to)).map((to): [string, string] => [from, to]));
}

/** How far each node is from the root, whichever way. */
function steps(root: string, edges: [string, string][]): Map<string, number> {
  const beside = new Map<string, string[]>();
  for (const [a, b] of edges) {
    beside.set(a, [...(beside.get(a) ?? []), b]);
    beside.set(b, [...(beside.get(b) ?? []), a]);
  }
  const at = new Map([[root, 0]]);
  for (const n of at.keys()) for (const b of beside.get(n) ?? []) if (!at.has(b)) at.set(b, at.get(n)! + 1);
  return at;
}

/** Layers from left to right: each node right of all that it was made of. */
function layers(ids: string[], edges: [string, string][]): Map<string, number> {
  const layer = new Map(ids.map((id) => [id, 0]));
  // As often as there are nodes at most: others may have told of a circle.
  for (let round = 0, moved = true; moved && round < ids.length; round++) {
    moved = false;
    for (const [a, b] of edges) {
      const at = layer.get(a)! + 1;
      if (at > layer.get(b)! && at < ids.length) {
        layer.set(b, at);
        moved = true;
      }
    }
  }
  // What is made of nothing stands beside what it feeds.
  for (const id of ids) {
    if (edges.some(([, b]) => b === id)) continue;
    const fed = edges.filter(([a]) => a === id).map(([, b]) => layer.get(b)!);
    if (fed.length > 0) layer.set(id, Math.max(0, Math.min(...fed) - 1));
  }
  const used = [...new Set(layer.values())].sort((a, b) => a - b);
  return new Map([...layer].map(([id, l]) => [id, used.indexOf(l)]));
}

/** Draws a graph. open: boxes with all their columns; shown: columns that are there in any case. */
export function draw(g: Graph, open: ReadonlySet<string>, shown: ReadonlySet<string>): Drawing {
  const every = plainEdges(g);
  const near = steps(g.root, every);
  const nodes = (g.nodes ?? []).filter((n) => near.has(n.id)).sort((a, b) => near.get(a.id)! - near.get(b.id)!).slice(0, most);
  const drawn = new Set(nodes.map((n) => n.id));
  const edges = every.filter(([a, b]) => a !== b && drawn.has(a) && drawn.has(b));
  const layer = layers([...drawn], edges);
  const columns: Box[][] = [];
  for (const node of nodes) {
    const all = fieldsOf(node);
    const fields = open.has(node.id) ? all : all.filter((f, i) => (all.length <= few + 1 ? true : i < few) || shown.has(columnKey(node.id, f)));
    const more = all.length - fields.length;
    const l = layer.get(node.id)!;
    (columns[l] ??= []).push({ node, layer: l, x: 0, y: 0, height: headHeight + (fields.length ? fields.length * rowHeight + 8 : 0) + (all.length > few + 1 ? rowHeight : 0), fields, more });
  }
  // Each beside the middle of what it is tied to, in a few sweeps both ways.
  const place = new Map<string, number>();
  const settle = () => columns.forEach((c) => c.forEach((b, i) => place.set(b.node.id, i - (c.length - 1) / 2)));
  settle();
  for (let sweep = 0; sweep < 6; sweep++) {
    const forward = sweep % 2 === 0;
    for (const c of forward ? columns : columns.toReversed()) {
      const middle = new Map(c.map((b) => {
        const tied = edges.filter(([x, y]) => (forward ? y : x) === b.node.id).map(([x, y]) => place.get(forward ? x : y)!);
        return [b, tied.length ? tied.reduce((a, v) => a + v, 0) / tied.length : place.get(b.node.id)!];
      }));
      c.sort((a, b) => middle.get(a)! - middle.get(b)!);
      c.forEach((b, i) => place.set(b.node.id, i - (c.length - 1) / 2));
    }
  }
  const tall = columns.map((c) => c.reduce((h, b) => h + b.height + gap.y, -gap.y));
  const height = Math.max(0, ...tall);
  columns.forEach((c, l) => {
    let y = (height - tall[l]!) / 2;
    for (const b of c) {
      b.x = l * (boxWidth + gap.x);
      b.y = y;
      y += b.height + gap.y;
    }
  });
  const boxes = columns.flat();
  const by = new Map(boxes.map((b) => [b.node.id, b]));
  return {
    boxes, edges: edges.map(([a, b]) => [by.get(a)!, by.get(b)!]), width: Math.max(0, columns.length * (boxWidth + gap.x) - gap.x), height,
    left: (g.nodes?.length ?? 0) - nodes.length,
  };
}

/** The columns of a node: those that it has, and those that are known to be made of something. */
export function fieldsOf(n: GraphNode): string[] {
  const all = new Set((n.fields ?? []).map((f) => f.name));
  for (const c of Object.keys(n.columns ?? {})) all.add(c);
  return [...all];
}

export const columnKey = (node: string, field: string) => `${node}\u0000${field}`;
export const columnOf = (key: string): [node: string, field: string] => key.split('\u0000') as [string, string];

export interface ColumnEdge {
  from: string; // keys
  to: string;
  how: string; // OpenLineage's word, small; empty where it is not known
  decides: boolean; // its values are not in it: they say which there are
}

/** What each column is made of, where that is known. */
export function columnEdges(g: Graph): ColumnEdge[] {
  const nodes = new Map((g.nodes ?? []).map((n) => [n.id, n]));
  const above = new Map<string, string[]>();
  for (const e of g.edges ?? []) above.set(e.to, [...(above.get(e.to) ?? []), e.from]);
  const out: ColumnEdge[] = [];
  for (const n of nodes.values()) {
    const near = above.get(n.id) ?? [];
    // A dataset of others has its job between it and what that read.
    const around = [...near, ...near.flatMap((id) => (nodes.get(id)?.kind === 'job' ? (above.get(id) ?? []) : []))].map((id) => nodes.get(id)!);
    for (const [field, sources] of Object.entries(n.columns ?? {})) {
      for (const s of sources ?? []) {
        const from = around.find((o) => o.id === s.name || (o.kind === 'dataset' && o.namespace === s.namespace && (o.name === s.name || o.name.split('@')[0] === s.name)));
        if (from) out.push({ from: columnKey(from.id, s.field), to: columnKey(n.id, field), how: (s.subtype ?? '').toLowerCase().replaceAll('_', ' '), decides: s.type === 'INDIRECT' });
      }
    }
  }
  return out;
}

export interface Trace {
  up: ColumnEdge[]; // over which its values came, nearest first
  down: ColumnEdge[]; // over which they go on
  decided: ColumnEdge[]; // what decides about it, a step away
  columns: Set<string>; // all of these
}

/** What a column came from, and what it feeds. */
export function trace(key: string, all: ColumnEdge[]): Trace {
  const follow = (near: (e: ColumnEdge) => string, far: (e: ColumnEdge) => string) => {
    const seen = new Set([key]);
    const out: ColumnEdge[] = [];
    for (const at of seen) {
      for (const e of all) {
        if (e.decides || near(e) !== at) continue;
        out.push(e);
        seen.add(far(e));
      }
    }
    return out;
  };
  const up = follow((e) => e.to, (e) => e.from);
  const down = follow((e) => e.from, (e) => e.to);
  const decided = all.filter((e) => e.decides && e.to === key && !up.some((o) => o.from === e.from));
  return { up, down, decided, columns: new Set([key, ...[...up, ...down].flatMap((e) => [e.from, e.to])]) };
}
