// Drift of every feature in every window. The colour is how near the feature is
// to its threshold; cells beyond it have a mark, too.
import { Button } from '@mantine/core';
import { useMemo, useRef, useState, type KeyboardEvent } from 'react';
import type { Window } from '../api/monitoring';
import { useZone } from '../frame/settings';
import { find, since, step } from './drift';
import { number, time } from './format';

const most = 60; // windows in sight
const few = 40; // features in sight until all are asked for
const day = 86_400_000; // ms

interface Props {
  windows: readonly Window[]; // oldest first
  rows: readonly string[];
  feature: string;
  window?: string; // id
  choose: (feature: string, window: string) => void;
}

export function Heatmap({ windows, rows: names, feature, window: chosen, choose }: Props) {
  const zone = useZone();
  const shown = useMemo(() => windows.slice(-most), [windows]);
  const [all, setAll] = useState(false);
  const rows = all ? names : names.slice(0, few);
  const close = shown.length > 1 && Date.parse(shown.at(-1)!.to) - Date.parse(shown[0]!.to) < 3 * day;
  const tick = (at: string) => (close ? time(at, zone).slice(11) : time(at, zone, 'date').slice(5));
  const body = useRef<HTMLTableSectionElement>(null);
  const row = Math.max(0, rows.indexOf(feature));
  const column = Math.max(0, shown.findIndex((w) => w.id === chosen));
  const pressed = (e: KeyboardEvent) => {
    const moves: Record<string, [number, number]> = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const move = moves[e.key];
    if (!move) return;
    e.preventDefault();
    const r = Math.max(0, Math.min(rows.length - 1, row + move[0]));
    const c = Math.max(0, Math.min(shown.length - 1, column + move[1]));
    choose(rows[r]!, shown[c]!.id);
    requestAnimationFrame(() => body.current?.querySelector<HTMLElement>(`[data-cell="${r}-${c}"]`)?.focus());
  };
  return (
    <div className="heatmap">
      <table role="grid" aria-label="Drift of each feature in each window">
        <thead>
          <tr>
            <th scope="col">Feature</th>
            {shown.map((w, i) => (
              <th key={w.id} scope="col" className="tick num" aria-label={time(w.to, zone)}>
                {i % Math.max(1, Math.ceil(shown.length / 8)) === 0 && <span>{tick(w.to)}</span>}
              </th>
            ))}
            <th scope="col" className="right">Now</th>
            <th scope="col">Drifted since</th>
          </tr>
        </thead>
        <tbody ref={body} onKeyDown={pressed}>
          {rows.map((name, r) => {
            const newest = windows.findLast((w) => find(w, name));
            const f = newest && find(newest, name);
            const start = since(windows, name);
            return (
              <tr key={name} className={name === feature ? 'chosen' : undefined}>
                <th scope="row">
                  <button type="button" title={name} onClick={() => choose(name, shown[column]?.id ?? '')}>{name}</button>
                </th>
                {shown.map((w, c) => {
                  const cell = find(w, name);
                  const s = step(cell);
                  const text = cell && s >= 0 ? `${number(cell.statistic)}${cell.p_value != null ? `, p ${number(cell.p_value)}` : `, threshold ${number(cell.threshold)}`}${cell.drifted ? ', drifted' : ''}` : (cell?.note ?? w.note ?? 'not tested');
                  return (
                    <td
                      key={w.id} role="gridcell" data-cell={`${r}-${c}`} className={`s${s}`} tabIndex={r === row && c === column ? 0 : -1} aria-selected={name === feature && w.id === chosen}
                      aria-label={`${name}, ${time(w.from, zone, 'date')} to ${time(w.to, zone, 'date')}: ${text}`} title={`${name}\n${time(w.from, zone)} – ${time(w.to, zone)}\nversion ${w.version}, ${w.rows} rows\n${text}`}
                      onClick={() => choose(name, w.id)}
                    />
                  );
                })}
                <td className="right num now">{number(f?.statistic)}</td>
                <td className="num since">{start ? <strong>{time(start, zone, close ? 'minute' : 'date')}</strong> : <span className="faint">–</span>}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
      {names.length > few && (
        <Button variant="default" size="xs" onClick={() => setAll(!all)}>
          {all ? `Only the first ${few}` : `All ${names.length} features`}
        </Button>
      )}
      <p className="key dim">
        <span className="swatch s0" /> as in training <span className="swatch s3" /> near the threshold <span className="swatch s4" /> drifted <span className="swatch s6" /> far beyond <span className="swatch s-1" /> not tested
      </p>
    </div>
  );
}
