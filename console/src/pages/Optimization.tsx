import { useMemo } from 'react';
import type uPlot from 'uplot';
import type { JobDetail, Optimization } from '../api/client';
import { Problem } from '../api/client';
import { ended, useOptimization } from '../api/queries';
import { count, number } from '../parts/format';
import { Plot, rule } from '../parts/Plot';
import { Failed, Panel, Tag, Wait } from '../parts/State';

/** Whether a job may be one that optimised a model; the server knows for sure. */
export const optimises = (j: JobDetail) => j.name.startsWith('optimize-') && (j.inputs ?? []).some((i) => i.ref.startsWith('model '));

/** What a job measured of the variants of a model: the metric over the latency, and a table. */
export function OptimizationPanel({ project, job }: { project: string; job: JobDetail }) {
  const q = useOptimization(project, job.id, ended(job.state));
  if (!ended(job.state)) return null;
  if (q.isPending) return <Panel title="Candidates" wide><Wait what="Loading the measurements …" /></Panel>;
  if (q.error) return q.error instanceof Problem && q.error.status === 404 ? null : <Panel title="Candidates" wide><Failed error={q.error} again={() => void q.refetch()} /></Panel>;
  const r = q.data;
  const candidates = r.candidates ?? [];
  return (
    <Panel title="Candidates" wide>
      <p>{r.reason}{r.made && <>; registered as <strong>{r.made}</strong></>}</p>
      <Scatter r={r} />
      <table className="plain">
        <thead>
          <tr>
            <th scope="col">Candidate</th><th scope="col" className="right">KiB</th><th scope="col" className="right">{r.metric}</th><th scope="col" className="right">Loss</th>
            <th scope="col" className="right">Batch</th><th scope="col" className="right">p50 ms</th><th scope="col" className="right">p99 ms</th><th scope="col" className="right">Rows/s</th><th scope="col" className="right">Times</th>
          </tr>
        </thead>
        <tbody>
          {candidates.map((c) =>
            !c.measured?.length ? (
              <tr key={c.name}><th scope="row">{c.name}</th><td colSpan={8} className="dim">{c.reason}</td></tr>
            ) : (
              c.measured.map((m, i) => (
                <tr key={`${c.name} ${m.batch}`} className={c.name === r.chosen ? 'chosen' : undefined}>
                  <th scope="row">{i === 0 && <>{c.name} {c.name === r.chosen && <Tag>chosen</Tag>}</>}</th>
                  <td className="right num">{i === 0 && count(Math.round((c.bytes ?? 0) / 1024))}</td>
                  <td className="right num">{i === 0 && number(c.value, 4)}</td>
                  <td className="right num">{i === 0 && <>{number(c.loss, 3)}{c.loss_error != null && <span className="dim"> ±{number(c.loss_error, 2)}</span>}</>}</td>
                  <td className="right num">{m.batch}</td>
                  <td className="right num">{number(m.p50_ms)}</td>
                  <td className="right num">{number(m.p99_ms)}</td>
                  <td className="right num">{count(Math.round(m.rows_per_s))}</td>
                  <td className="right num">{number(m.speedup)}</td>
                </tr>
              ))
            ),
          )}
        </tbody>
      </table>
      <p className="dim">By {r.labelled ? 'labels' : 'the outputs of the original model'} of {count(r.rows)} rows, {r.threads} {r.threads === 1 ? 'thread' : 'threads'}, {r.runtime}.</p>
    </Panel>
  );
}

function Scatter({ r }: { r: Optimization }) {
  const points = useMemo(
    () =>
      (r.candidates ?? [])
        .flatMap((c) => (c.value != null && c.measured?.length ? [{ name: c.name, x: c.measured[0]!.p50_ms, y: c.value }] : []))
        .sort((a, b) => a.x - b.x),
    [r],
  );
  const data = useMemo<uPlot.AlignedData>(
    () => [points.map((p) => p.x), points.map((p) => p.y), points.map((p) => (p.name === r.chosen ? p.y : null))],
    [points, r.chosen],
  );
  const base = points.find((p) => p.name === 'fp32');
  if (!base) return null;
  const limit = r.metric === 'rmse' ? base.y * (1 + r.max_loss) : base.y - r.max_loss;
  const ys = points.map((p) => p.y).concat(limit);
  const [low, high] = [Math.min(...ys), Math.max(...ys)];
  const air = (high - low || 0.01) * 0.15;
  return (
    <Plot
      height={280} data={data}
      label={`${r.metric} over the median latency in milliseconds: ${points.map((p) => `${p.name} ${number(p.y, 4)} in ${number(p.x)}`).join(', ')}. The limit is ${number(limit, 4)}.`}
      options={(c) => ({
        legend: { show: false }, cursor: { drag: { x: false, y: false }, y: false },
        scales: { x: { time: false, distr: 3, log: 10 }, y: { range: [low - air, high + air] } },
        axes: [{ label: 'median latency, ms', values: (_, v) => v.map((n) => (n == null ? '' : number(n))) }, { size: 64, values: (_, v) => v.map((n) => number(n, 4)) }],
        series: [
          {},
          { stroke: c.stable, width: 0, paths: () => null, points: { show: true, size: 8, fill: c.stable } },
          { stroke: c.canary, width: 0, paths: () => null, points: { show: true, size: 12, fill: c.canary } },
        ],
        hooks: {
          draw: [
            (u) => {
              rule(u, limit, c.limit, `allowed ${number(limit, 4)}`);
              u.ctx.save();
              u.ctx.fillStyle = c.text;
              u.ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
              for (const p of points) {
                const x = u.valToPos(p.x, 'x', true);
                const right = x > u.bbox.left + u.bbox.width * 0.8;
                u.ctx.textAlign = right ? 'right' : 'left';
                u.ctx.fillText(p.name, x + (right ? -8 : 8) * devicePixelRatio, u.valToPos(p.y, 'y', true) - 6 * devicePixelRatio);
              }
              u.ctx.restore();
            },
          ],
        },
      })}
    />
  );
}
