// One uPlot chart: as wide as its place, in the colours of the scheme, with a
// sentence for those who do not see it.
import { useComputedColorScheme } from '@mantine/core';
import { useEffect, useRef } from 'react';
import uPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';

export interface Colours {
  text: string;
  grid: string;
  stable: string;
  canary: string;
  band: string;
  limit: string;
  zero: string;
  quiet: string;
}

function colours(): Colours {
  const s = getComputedStyle(document.documentElement);
  const v = (name: string) => s.getPropertyValue(`--${name}`).trim();
  return { text: v('dim'), grid: v('line'), stable: v('stable'), canary: v('canary'), band: v('band'), limit: v('limit'), zero: v('faint'), quiet: v('quiet') };
}

interface Props {
  label: string; // what the picture says, in words
  height?: number;
  data: uPlot.AlignedData;
  options: (c: Colours) => Omit<uPlot.Options, 'width' | 'height'>;
}

export function Plot({ label, height = 240, data, options }: Props) {
  const place = useRef<HTMLDivElement>(null);
  const scheme = useComputedColorScheme('light');
  const plot = useRef<uPlot | null>(null);
  const make = useRef(options);
  make.current = options;
  const shape = data.length;
  useEffect(() => {
    const div = place.current!;
    const c = colours();
    const made = make.current(c);
    const axis: uPlot.Axis = { stroke: c.text, grid: { stroke: c.grid, width: 1 }, ticks: { stroke: c.grid, width: 1 }, font: '12px system-ui, sans-serif', labelFont: '12px system-ui, sans-serif', labelSize: 22 };
    const u = new uPlot(
      { ...made, axes: made.axes?.map((a) => ({ ...axis, ...a, grid: { ...axis.grid, ...a.grid } })), width: Math.max(200, div.clientWidth), height } as uPlot.Options,
      data,
      div,
    );
    plot.current = u;
    const observer = new ResizeObserver(() => u.setSize({ width: Math.max(200, div.clientWidth), height }));
    observer.observe(div);
    return () => {
      observer.disconnect();
      u.destroy();
      plot.current = null;
    };
    // New data is set below; a new scheme, shape or sentence makes a new chart.
  }, [scheme, height, shape, label]);
  useEffect(() => plot.current?.setData(data), [data]);
  return <div ref={place} className="plot" role="img" aria-label={label} />;
}

/** A horizontal line with its name at one end, drawn over the chart. */
export function rule(u: uPlot, y: number, colour: string, text: string, side: 'left' | 'right' = 'right', dash: number[] = [5, 4]) {
  const at = u.valToPos(y, 'y', true);
  const { left, top, width, height } = u.bbox;
  if (at < top || at > top + height) return;
  const r = devicePixelRatio;
  u.ctx.save();
  u.ctx.strokeStyle = colour;
  u.ctx.lineWidth = 1.5 * r;
  u.ctx.setLineDash(dash.map((d) => d * r));
  u.ctx.beginPath();
  u.ctx.moveTo(left, at);
  u.ctx.lineTo(left + width, at);
  u.ctx.stroke();
  u.ctx.fillStyle = colour;
  u.ctx.font = `600 ${11 * r}px system-ui, sans-serif`;
  u.ctx.textAlign = side;
  const x = side === 'right' ? left + width - 4 * r : left + 4 * r;
  // A halo keeps the words legible where a curve runs through them.
  u.ctx.setLineDash([]);
  u.ctx.lineJoin = 'round';
  u.ctx.lineWidth = 4 * r;
  u.ctx.strokeStyle = getComputedStyle(u.root).getPropertyValue('--panel').trim();
  u.ctx.strokeText(text, x, at - 6 * r);
  u.ctx.fillText(text, x, at - 6 * r);
  u.ctx.restore();
}
