// What a window's numbers mean in a picture. Pure.
import type { Feature, Summary, Window } from '../api/monitoring';

/**
 * How near a feature is to being called drifted: 1 is the threshold, more is
 * beyond it, null is not tested. A test with a p-value is measured by the
 * p-value's logarithm, a distance by its size.
 */
export function strength(f: Feature | null | undefined): number | null {
  if (!f || f.threshold == null || f.threshold <= 0) return f?.drifted ? 1 : null;
  if (f.p_value != null) {
    if (f.threshold >= 1) return null;
    return f.p_value <= 0 ? 4 : Math.min(4, Math.log(f.p_value) / Math.log(f.threshold));
  }
  return f.statistic == null ? null : Math.min(4, f.statistic / f.threshold);
}

/** The step of the colour scale: 0 calm … 3 near, 4 beyond … 6 far beyond; -1 is not tested. */
export function step(f: Feature | null | undefined): number {
  const s = strength(f);
  if (s == null) return -1;
  if (f!.drifted) return s < 1.5 ? 4 : s < 2.5 ? 5 : 6;
  return s < 0.25 ? 0 : s < 0.5 ? 1 : s < 0.75 ? 2 : 3;
}

/** The begin of the run of drifted windows that goes on to the newest; null when it is not drifted now. Windows are oldest first. */
export function since(windows: readonly Window[], feature: string): string | null {
  let at: string | null = null;
  for (const w of windows.toReversed()) {
    const f = find(w, feature);
    if (!f || strength(f) == null) continue; // not tested: says nothing
    if (!f.drifted) break;
    at = w.from;
  }
  return at;
}

/** Of windows that end at the same time, the one with most rows: that of the version with the most predictions. Oldest first. */
export function mainly(windows: readonly Window[]): Window[] {
  const by = new Map<string, Window>();
  for (const w of windows) {
    const other = by.get(w.to);
    if (!other || w.rows > other.rows) by.set(w.to, w);
  }
  return [...by.values()];
}

export const scoreName = '(score)';

export const find = (w: Window, feature: string): Feature | undefined => (feature === scoreName ? (w.score ?? undefined) : w.features?.find((f) => f.name === feature));

/** Names of all features in the windows: those that drift now first, then by name; the score before them. */
export function rowsOf(windows: readonly Window[]): string[] {
  const names = new Set<string>();
  let score = false;
  for (const w of windows) {
    w.features?.forEach((f) => names.add(f.name));
    score ||= !!w.score;
  }
  const newest = windows.at(-1);
  const rank = (name: string) => (newest && find(newest, name)?.drifted ? (strength(find(newest, name)) ?? 0) : -1);
  const sorted = [...names].sort((a, b) => rank(b) - rank(a) || a.localeCompare(b));
  return score ? [scoreName, ...sorted] : sorted;
}

export interface Bars {
  labels: string[]; // one for each bar
  baseline: number[]; // shares of one
  window: number[];
}

const binned = 24; // bars of numbers

/** Two summaries on the same bars, as shares; null when there is nothing to compare. */
export function bars(baseline: Summary | undefined, window: Summary | undefined, format: (n: number) => string): Bars | null {
  const share = (counts: number[]) => {
    const all = counts.reduce((a, b) => a + b, 0);
    return counts.map((c) => (all > 0 ? c / all : 0));
  };
  const one = baseline ?? window;
  if (one?.categories) {
    const names = [...new Set([...(baseline?.categories ?? []), ...(window?.categories ?? [])].map((c) => c.text))].slice(0, 30);
    const of = (s?: Summary) => share(names.map((n) => s?.categories?.find((c) => c.text === n)?.count ?? 0));
    return names.length > 0 ? { labels: names, baseline: of(baseline), window: of(window) } : null;
  }
  const drawn = [baseline?.histogram, window?.histogram].filter((h) => h && h.edges.length > 1).map((h) => h!);
  if (drawn.length === 0) return null;
  const low = Math.min(...drawn.map((h) => h.edges[0]!));
  const high = Math.max(...drawn.map((h) => h.edges.at(-1)!));
  const edges = Array.from({ length: binned + 1 }, (_, i) => low + ((high - low) * i) / binned);
  const labels = edges.slice(0, -1).map((e, i) => `${format(e)} … ${format(edges[i + 1]!)}`);
  const of = (s?: Summary) => share(s?.histogram && s.histogram.edges.length > 1 ? rebin(s.histogram, edges) : labels.map(() => 0));
  return { labels, baseline: of(baseline), window: of(window) };
}

/** What stands at the ends of a histogram's axis: its outermost edges, marked where the outermost bars also have what lies beyond them. */
export function scaleOf(edges: readonly string[], min?: string, max?: string) {
  const [from, to] = [edges[0], edges.at(-1)];
  return {
    from: { edge: from, mark: min !== undefined && min !== from ? '≤ ' : '' },
    to: { edge: to, mark: max !== undefined && max !== to ? '> ' : '' },
  };
}

/** Shares of one histogram on the edges of another, spread evenly within its bars; what lies outside goes to the outermost. */
export function rebin(h: { edges: number[]; shares: number[] }, edges: readonly number[]): number[] {
  const out = new Array<number>(edges.length - 1).fill(0);
  const at = (x: number) => {
    let i = 0;
    while (i < out.length - 1 && x >= edges[i + 1]!) i++;
    return i;
  };
  h.shares.forEach((c, i) => {
    const from = h.edges[i]!;
    const to = h.edges[i + 1]!;
    if (!(to > from)) {
      out[at(from)]! += c;
      return;
    }
    for (let k = at(from); k <= at(to); k++) {
      const low = k === 0 ? from : Math.max(from, edges[k]!);
      const high = k === out.length - 1 ? to : Math.min(to, edges[k + 1]!);
      if (high > low) out[k]! += (c * (high - low)) / (to - from);
    }
  });
  return out;
}
