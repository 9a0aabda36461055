import { columnEdges, columnKey, draw, plainEdges, trace } from './lineage';
import type { Gateway, Graph, GraphNode } from '../api/client';
import { describe, expect, test } from 'vitest';
import { Parser } from '../api/sse';
import { stale } from '../api/live';
import type { Feature, Window } from '../api/monitoring';
import { bars, mainly, rebin, rowsOf, scaleOf, scoreName, since, step, strength } from './drift';
import { boxes, flame } from './flame';
import { leftOut, stateOf } from './gateway';
import { ago, bytes, count, ms, number, percent, signed, span, time } from './format';

describe('format', () => {
  test.each([
    [count(1234567), '1\u2009234\u2009567'],
    [count(null), '–'],
    [number(0.0123456), '0.0123'],
    [number(-1234.56), '−1\u2009235'],
    [number(1e-9), '1.00e-9'],
    [number(0), '0'],
    [number(NaN), '–'],
    [number(12.3456), '12.3'],
    [signed(0.002), '+0.002'],
    [percent(0.123), '12 %'],
    [percent(0.0001), '< 1 %'],
    [percent(0), '0 %'],
    [bytes(0), '0 B'],
    [bytes(1023), '1\u2009023 B'],
    [bytes(1536), '1.5 KiB'],
    [bytes(5 * 1024 ** 3), '5 GiB'],
    [bytes(null), '–'],
    [ms(0.25), '250 µs'],
    [ms(12.34), '12.3 ms'],
    [ms(2500), '2.5 s'],
    [span(500), '500 ms'],
    [span(61_000), '1 min 1 s'],
    [span(7_200_000), '2 h'],
    [span(90_000_000), '1 d 1 h'],
    [time('2013-06-24T14:05:09Z', 'utc', 'second'), '2013-06-24 14:05:09'],
    [time('2013-06-24T14:05:09Z', 'utc', 'date'), '2013-06-24'],
    [time('nonsense', 'utc'), '–'],
    [ago('2013-06-24T14:00:00Z', Date.parse('2013-06-24T14:05:00Z')), '5 min ago'],
    [ago('2013-06-24T14:10:00Z', Date.parse('2013-06-24T14:05:00Z')), 'in 5 min'],
    [ago('2013-06-24T14:05:00Z', Date.parse('2013-06-24T14:05:10Z')), 'just now'],
  ])('%s is %s', (got, want) => expect(got).toBe(want));
});

describe('server-sent events', () => {
  const stream = 'retry: 3000\n: watching\n\nid: 1-2\nevent: job.queued\ndata: {"a":1}\n\nid: 1-3\n: alive\n\nid: 1-4\r\nevent: x\r\ndata: one\r\ndata: two\r\n\r\n';
  test.each([1, 2, 3, 7, stream.length])('in pieces of %d characters', (size) => {
    const p = new Parser();
    const got = [];
    for (let i = 0; i < stream.length; i += size) got.push(...p.feed(stream.slice(i, i + size)));
    expect(got).toEqual([
      { id: '1-2', event: 'job.queued', data: '{"a":1}' },
      { id: '1-4', event: 'x', data: 'one\ntwo' },
    ]);
    expect(p.retry).toBe(3000);
  });
  test('a silent stream moves the place to resume from', () => {
    const p = new Parser();
    expect(p.feed('id: 7-0\n: alive\n\n')).toEqual([]);
    expect(p.id).toBe('7-0');
  });
  test('a message that is not complete is not told', () => expect(new Parser().feed('data: half\n')).toEqual([]));
  test('what an event makes stale', () => {
    expect(stale('monitor.drifted')).toContain('deployment');
    expect(stale('rollout.concluded')).toEqual(['deployment']);
    expect(stale('key.destroyed')).toEqual([]);
  });
});

const feature = (f: Partial<Feature>): Feature => ({
  name: 'temp', kind: 'numeric', statistic: 0.05, p_value: null, threshold: 0.1, drifted: false, rows: 1000, missing: 0, baseline_missing: 0, mean: 1, baseline_mean: 1, ...f,
});
const at = (day: number, ...features: Feature[]): Window =>
  ({ id: String(day), from: `2013-06-0${day}T00:00:00Z`, features, score: feature({ name: 'score' }) }) as Window;

describe('drift', () => {
  test('strength is 1 at the threshold, for distances and for p-values', () => {
    expect(strength(feature({ statistic: 0.1 }))).toBeCloseTo(1);
    expect(strength(feature({ p_value: 0.01, threshold: 0.01 }))).toBeCloseTo(1);
    expect(strength(feature({ p_value: 0, threshold: 0.01, drifted: true }))).toBe(4);
    expect(strength(feature({ threshold: null }))).toBeNull();
    expect(step(feature({ statistic: null }))).toBe(-1);
    expect(step(feature({ statistic: 0.3, drifted: true }))).toBe(6);
  });
  test('since is the begin of the run that goes on', () => {
    const calm = feature({}), bad = feature({ statistic: 0.2, drifted: true }), untested = feature({ threshold: null });
    expect(since([at(1, bad), at(2, calm), at(3, bad), at(4, untested), at(5, bad)], 'temp')).toBe('2013-06-03T00:00:00Z');
    expect(since([at(1, bad), at(2, calm)], 'temp')).toBeNull();
    expect(since([], 'temp')).toBeNull();
  });
  test('the score and what drifts now come first', () => {
    const w = at(1, feature({ name: 'a' }), feature({ name: 'z', drifted: true, statistic: 0.2 }));
    expect(rowsOf([w])).toEqual([scoreName, 'z', 'a']);
  });
  test('a histogram on other edges keeps its counts', () => {
    expect(rebin({ edges: [0, 2], shares: [10] }, [0, 1, 2])).toEqual([5, 5]);
    expect(rebin({ edges: [-5, -1, 9], shares: [3, 7] }, [0, 1, 2]).reduce((a, b) => a + b)).toBeCloseTo(10);
    expect(rebin({ edges: [1, 1], shares: [4] }, [0, 1, 2])).toEqual([0, 4]);
  });
  test('of a time, the version with the most predictions is shown', () => {
    const w = (version: number, to: string, rows: number) => ({ version, to, rows }) as Window;
    expect(mainly([w(3, 'a', 80), w(4, 'a', 20), w(3, 'b', 10), w(4, 'b', 90)]).map((x) => x.version)).toEqual([3, 4]);
  });
  test('two histograms are drawn on the range of both', () => {
    const drawn = bars({ histogram: { edges: [0, 1], shares: [1] } }, { histogram: { edges: [1, 2], shares: [1] } }, String)!;
    expect(drawn.labels).toHaveLength(24);
    expect(drawn.baseline.slice(12).every((x) => x < 1e-9) && drawn.window.slice(0, 12).every((x) => x < 1e-9)).toBe(true);
    expect(drawn.window.reduce((a, b) => a + b)).toBeCloseTo(1);
  });
  test('bars are shares', () => {
    expect(bars({ categories: [{ text: 'UA', count: 3 }, { text: 'B6', count: 1 }] }, { categories: [{ text: 'EV', count: 2 }] }, String)).toEqual({
      labels: ['UA', 'B6', 'EV'], baseline: [0.75, 0.25, 0], window: [0, 0, 1],
    });
    expect(bars(undefined, undefined, String)).toBeNull();
  });
});

describe('flame graph', () => {
  const root = flame(
    [
      'process 1:"python -m torch.distributed.run";process 7:"python t.py";thread (7): MainThread;a (t.py:1);b (t.py:2) 6',
      'process 7:"python t.py";thread (7);a (t.py:9);c (u.py) 3',
      'process 7:"python t.py";thread (8): loader;x (t.py:1) 90',
      'no stack',
      '',
    ].join('\n'),
  );
  test('first threads, and lines of a function together', () => {
    expect(root.n).toBe(9);
    expect(root.children.map((f) => [f.name, f.where, f.n])).toEqual([['a', 't.py', 9]]);
    expect(root.children[0]!.children.map((f) => [f.name, f.where, f.n])).toEqual([['b', 't.py', 6], ['c', 'u.py', 3]]);
  });
  test('other threads when there are no first ones', () => expect(flame('thread (8): loader;x (t.py:1) 90').children[0]!.name).toBe('x'));
  test('stacks without an end', () => {
    const deep = flame(`${'f (t.py:1);'.repeat(100_000)}g (${'x '.repeat(100_000)} 5\n`.repeat(3));
    expect([deep.n, boxes([deep]).length]).toEqual([15, 201]);
  });
  test('prefixes without an end keep nobody busy', () => {
    const many = 'process 1:"";'.repeat(100_000);
    for (const text of [many, `${many}x`, `${many} x`, 'process 1:"'.repeat(100_000) + ' 5', 'process 1'.repeat(100_000) + ' 5', `${many.replaceAll('"";', '" ";')} 7x`])
      expect(flame(text.repeat(2)).n).toBe(0);
    expect(flame(`${many}thread (1): MainThread;f (t.py:1) 3`).children).toMatchObject([{ name: 'f', n: 3 }]);
  });
  test('nothing', () => expect(boxes([flame('')])).toHaveLength(1));
  test('calls lie within their callers, beside each other', () => {
    const drawn = boxes([root]).map((b) => [b.path.at(-1)!.name, b.path.length, b.from, b.width]);
    expect(drawn).toEqual([['all', 1, 0, 1], ['a', 2, 0, 1], ['b', 3, 0, 6 / 9], ['c', 3, 6 / 9, 3 / 9]]);
    const a = root.children[0]!;
    expect(boxes([root, a, a.children[1]!]).map((b) => b.width)).toEqual([1, 1, 1]);
  });
});

describe('lineage', () => {
  const node = (id: string, fields: string[] = [], columns = {}): GraphNode => ({ id, kind: id.split(' ')[0]!, namespace: 'falaj://nyc', name: id.split(' ')[1]!, fields: fields.map((name) => ({ name })), columns });
  const from = (name: string, field: string, type = 'DIRECT', namespace = '') => ({ namespace, name, field, type, subtype: type === 'DIRECT' ? 'IDENTITY' : 'JOIN' });
  const g: Graph = {
    root: 'model delay@3',
    nodes: [
      node('model delay@3'),
      node('dataset delays@1', ['temp', 'late'], { temp: [from('feature_view weather@2', 'temp'), from('weather', 'temp', 'DIRECT', 'falaj://nyc'), from('weather', 'hour', 'INDIRECT', 'falaj://nyc')] }),
      node('feature_view weather@2', ['temp'], { temp: [from('weather', 'temp', 'DIRECT', 'falaj://nyc')] }),
      node('dataset weather@3', ['temp', 'hour', 'a', 'b', 'c', 'd', 'e', 'f']),
      node('job job_1'),
    ],
    edges: [
      { from: 'dataset weather@3', to: 'feature_view weather@2' }, { from: 'feature_view weather@2', to: 'dataset delays@1' }, { from: 'dataset weather@3', to: 'dataset delays@1' },
      { from: 'dataset delays@1', to: 'job job_1' }, { from: 'job job_1', to: 'model delay@3' },
    ],
  };
  test('what leads over a view is not drawn beside it', () => expect(plainEdges(g)).not.toContainEqual(['dataset weather@3', 'dataset delays@1']));
  test('each stands right of what it was made of', () => {
    const { boxes, edges } = draw(g, new Set(), new Set());
    expect(boxes.map((b) => [b.node.name, b.layer])).toEqual([['weather@3', 0], ['weather@2', 1], ['delays@1', 2], ['job_1', 3], ['delay@3', 4]]);
    expect(edges.every(([a, b]) => a.x < b.x)).toBe(true);
    expect([boxes[0]!.fields.length, boxes[0]!.more]).toEqual([5, 3]);
  });
  test('a chosen column is shown however many there are', () => expect(draw(g, new Set(), new Set([columnKey('dataset weather@3', 'f')])).boxes[0]!.fields).toContain('f'));
  test('a circle ends', () => expect(draw({ ...g, edges: [...g.edges!, { from: 'model delay@3', to: 'dataset weather@3' }] }, new Set(), new Set()).boxes).toHaveLength(5));
  test('where a column came from, and what it feeds', () => {
    const all = columnEdges(g);
    const t = trace(columnKey('dataset weather@3', 'temp'), all);
    expect([...t.columns].map((k) => k.replace('\u0000', '.'))).toEqual(['dataset weather@3.temp', 'dataset delays@1.temp', 'feature_view weather@2.temp']);
    const back = trace(columnKey('dataset delays@1', 'temp'), all);
    expect(back.up.map((e) => e.from.replace('\u0000', '.'))).toContain('dataset weather@3.temp');
    expect(back.decided.map((e) => e.from.replace('\u0000', '.'))).toEqual(['dataset weather@3.hour']);
    expect(back.down).toEqual([]);
  });
});

describe('gateways', () => {
  const now = Date.parse('2026-11-27T12:00:00Z');
  const g = (seen?: Partial<NonNullable<Gateway['seen']>>): Gateway => ({
    project: 'nyc', name: 'edge', spec: { zone: 'home' }, created_at: '', updated_at: '', revision: 1,
    seen: seen && { at: '2026-11-27T11:59:55Z', instance: 'gwi_1', zone: 'home', waiting: 0, ...seen },
  });
  test.each([
    [stateOf(g(), now), ['waiting', 'It has never connected.']],
    [stateOf(g({}), now), ['ready', '']],
    [stateOf(g({ at: '2026-11-27T11:00:00Z' }), now)[0], 'away'],
    [stateOf(g({ holds: [{ deployment: 'a', version: 1, state: 'ready' }, { deployment: 'b', version: 2, state: 'failed', reason: 'no memory' }] }), now), ['failed', 'b: no memory']],
    [leftOut(g({ left_out: [{ deployment: 'a', reason: 'it is allowed only in DE' }] })), 'a: it is allowed only in DE'],
    [leftOut(g()), ''],
  ])('%j is %j', (got, want) => expect(got).toEqual(want));
});

describe('the axis of a histogram', () => {
  const ends = (min?: string, max?: string) => {
    const { from, to } = scaleOf(['1', '2', '3'], min, max);
    return [from.mark + from.edge, to.mark + to.edge];
  };
  test('has the edges of its bars', () => expect(ends('1', '3')).toEqual(['1', '3']));
  test('marks bars that also have what lies beyond', () => expect(ends('-100', '900')).toEqual(['≤ 1', '> 3']));
  test('marks nothing that is not known', () => expect(ends()).toEqual(['1', '3']));
});
