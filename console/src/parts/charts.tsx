import { useMemo } from 'react';
import uPlot from 'uplot';
import type { Decision, Metric, Point, Window } from '../api/monitoring';
import { useZone } from '../frame/settings';
import type { Bars } from './drift';
import { find, scoreName } from './drift';
import { number, percent, signed, time, type Zone } from './format';
import { Plot, rule } from './Plot';

const nan = (n: number | null | undefined) => (n == null || !Number.isFinite(n) ? null : n);

/** The range that shows all values and the rules, with some air. */
function range(...values: (number | null | undefined)[]): [number, number] {
  const all = values.filter((v): v is number => v != null && Number.isFinite(v));
  if (all.length === 0) return [0, 1];
  const low = Math.min(...all);
  const high = Math.max(...all);
  const air = (high - low || Math.abs(high) || 1) * 0.12;
  return [low - air, high + air];
}

/** An axis of times in the reader's zone: days, or clock times when they are close. */
const days = (zone: Zone): uPlot.Axis => ({
  space: 60,
  values: (_, splits, __, ___, step) =>
    splits.map((s, i) => {
      const text = time(s * 1000, zone);
      const day = text.slice(0, 4) === time((splits[i - 1] ?? 0) * 1000, zone).slice(0, 4) ? text.slice(5, 10) : text.slice(0, 10);
      return step < 86_400 ? text.slice(11) : day;
    }),
});

const legend = { show: false };
const cursor: uPlot.Cursor = { drag: { x: false, y: false }, y: false };

/** The interval of the difference of the losses over the number of labels, with the margin. */
export function IntervalChart({ points, decision, metric }: { points: readonly Point[]; decision: Decision; metric: string }) {
  const data = useMemo<uPlot.AlignedData>(
    () => [points.map((p) => p.labels), points.map((p) => nan(p.high)), points.map((p) => nan(p.low)), points.map((p) => nan(p.difference))],
    [points],
  );
  const last = points.at(-1);
  const label = last
    ? `Difference of ${metric}, canary minus stable, after ${last.labels} labels: ${signed(last.difference)}, between ${signed(last.low)} and ${signed(last.high)}. The margin is ${number(decision.margin)}.`
    : 'No labels.';
  // The first intervals are wide; they may not hide the later ones.
  const shown = points.slice(Math.floor(points.length / 5));
  const [from, to] = range(...shown.flatMap((p) => [p.low, p.high]), decision.margin * 1.3, 0);
  return (
    <Plot
      label={label} data={data} height={260}
      options={(c) => ({
        legend, cursor,
        scales: { x: { time: false }, y: { range: [from, to] } },
        axes: [
          { label: 'labels of both versions', values: (_, v) => v.map((n) => number(n, 4)) },
          { size: 64, values: (_, v) => v.map((n) => signed(n)) },
        ],
        series: [
          {},
          { stroke: c.canary, width: 1 },
          { stroke: c.canary, width: 1 },
          { stroke: c.canary, width: 2 },
        ],
        bands: [{ series: [1, 2], fill: c.band }],
        hooks: {
          draw: [
            (u) => {
              rule(u, 0, c.zero, 'no difference', 'left', [2, 3]);
              rule(u, decision.margin, c.limit, `margin ${signed(decision.margin)}`);
            },
          ],
        },
      })}
    />
  );
}

/** A feature's statistic over the windows, with its threshold. */
export function StatisticChart({ windows, feature, chosen }: { windows: readonly Window[]; feature: string; chosen?: Window }) {
  const zone = useZone();
  const rows = useMemo(() => windows.map((w) => ({ at: Date.parse(w.to) / 1000, f: find(w, feature) })), [windows, feature]);
  const byP = rows.some((r) => r.f?.p_value != null);
  const data = useMemo<uPlot.AlignedData>(
    () => [
      rows.map((r) => r.at),
      rows.map((r) => nan(r.f?.statistic)),
      rows.map((r) => (r.f?.drifted ? nan(r.f.statistic) : null)),
      rows.map((r) => (byP ? null : nan(r.f?.threshold))),
    ],
    [rows, byP],
  );
  const method = rows.findLast((r) => r.f?.method)?.f?.method ?? 'statistic';
  const [, high] = range(...rows.flatMap((r) => [r.f?.statistic, byP ? 0 : r.f?.threshold]));
  const last = rows.at(-1)?.f;
  const name = feature === scoreName ? 'the score' : feature;
  return (
    <Plot
      height={200} data={data}
      label={`${method} of ${name} over ${rows.length} windows; the newest is ${number(last?.statistic)}${byP ? `, p ${number(last?.p_value)}` : `, the threshold ${number(last?.threshold)}`}.`}
      options={(c) => ({
        legend, cursor,
        scales: { y: { range: [0, Math.max(high, 1e-9)] } },
        tzDate: (ts) => (zone === 'utc' ? uPlot.tzDate(new Date(ts * 1000), 'Etc/UTC') : new Date(ts * 1000)),
        axes: [days(zone), { size: 56, values: (_, v) => v.map((n) => number(n)) }],
        series: [
          {},
          { stroke: c.stable, width: 2, points: { show: rows.length < 40, size: 5, fill: c.stable } },
          { stroke: 'transparent', width: 0, points: { show: true, size: 8, fill: c.limit, stroke: c.limit } },
          { stroke: c.limit, width: 1.5, dash: [5, 4], points: { show: false } },
        ],
        hooks: {
          draw: [
            (u) => {
              if (!chosen) return;
              const x = u.valToPos(Date.parse(chosen.to) / 1000, 'x', true);
              u.ctx.save();
              u.ctx.strokeStyle = c.zero;
              u.ctx.lineWidth = devicePixelRatio;
              u.ctx.beginPath();
              u.ctx.moveTo(x, u.bbox.top);
              u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
              u.ctx.stroke();
              u.ctx.restore();
            },
          ],
        },
      })}
    />
  );
}

/** A metric with its interval over the windows. */
export function MetricChart({ windows, name }: { windows: readonly Window[]; name: string }) {
  const zone = useZone();
  const rows = useMemo(
    () => windows.map((w) => ({ at: Date.parse(w.to) / 1000, real: metricOf(w, name, false), estimate: metricOf(w, name, true) })),
    [windows, name],
  );
  const data = useMemo<uPlot.AlignedData>(
    () => [rows.map((r) => r.at), rows.map((r) => nan(r.real?.high)), rows.map((r) => nan(r.real?.low)), rows.map((r) => nan(r.real?.value)), rows.map((r) => nan(r.estimate?.value))],
    [rows],
  );
  const limit = rows.findLast((r) => r.real?.limit != null)?.real?.limit ?? null;
  const [from, to] = range(...rows.flatMap((r) => [r.real?.low, r.real?.high, r.real?.value, r.estimate?.value]), limit);
  const last = rows.findLast((r) => r.real?.value != null)?.real;
  return (
    <Plot
      height={170} data={data}
      label={`${name} over ${rows.length} windows; the newest with labels is ${number(last?.value)}, between ${number(last?.low)} and ${number(last?.high)}.`}
      options={(c) => ({
        legend, cursor,
        scales: { y: { range: [from, to] } },
        tzDate: (ts) => (zone === 'utc' ? uPlot.tzDate(new Date(ts * 1000), 'Etc/UTC') : new Date(ts * 1000)),
        axes: [days(zone), { size: 56, values: (_, v) => v.map((n) => number(n)) }],
        series: [
          {},
          { stroke: 'transparent', width: 0, points: { show: false } },
          { stroke: 'transparent', width: 0, points: { show: false } },
          { stroke: c.stable, width: 2, spanGaps: true, points: { show: rows.length < 40, size: 5, fill: c.stable } },
          { stroke: c.quiet, width: 1.5, dash: [3, 3], points: { show: false } },
        ],
        bands: [{ series: [1, 2], fill: c.band }],
        hooks: { draw: [(u) => void (limit != null && rule(u, limit, c.limit, `limit ${number(limit)}`))] },
      })}
    />
  );
}

export const metricOf = (w: Window, name: string, estimate: boolean): Metric | undefined => w.performance.metrics?.find((m) => m.name === name && m.estimate === estimate);

/** What a version was trained on beside what it sees, bar by bar. */
export function Histogram({ bars, name }: { bars: Bars; name: string }) {
  const most = Math.max(...bars.baseline, ...bars.window, 1e-9);
  const named = bars.labels.length <= 12 && bars.labels.every((l) => l.length <= 12);
  return (
    <figure className="histogram" aria-label={`Shares of the values of ${name}, in training and in the window`}>
      <div className="bars">
        {bars.labels.map((label, i) => (
          <div key={label} className="pair" title={`${label}\ntraining ${percent(bars.baseline[i], 1)}\nwindow ${percent(bars.window[i], 1)}`}>
            <span className="base" style={{ height: `${(bars.baseline[i]! / most) * 100}%` }} />
            <span className="now" style={{ height: `${(bars.window[i]! / most) * 100}%` }} />
          </div>
        ))}
      </div>
      <div className="scale num">
        {named ? (
          bars.labels.map((l) => <span key={l} className="each">{l}</span>)
        ) : (
          <>
            <span>{bars.labels[0]?.split(' … ')[0]}</span>
            <span>{bars.labels.at(-1)?.split(' … ').at(-1)}</span>
          </>
        )}
      </div>
    </figure>
  );
}

/** How exactly the times of windows are told: to the minute when they are shorter than a day. */
export const formOf = (w: Pick<Window, 'from' | 'to'>) => (Date.parse(w.to) - Date.parse(w.from) < 86_400_000 ? 'minute' : 'date');

export const whenOf = (w: Window, zone: Zone) => `${time(w.from, zone, formOf(w))} – ${time(w.to, zone, formOf(w))}`;
