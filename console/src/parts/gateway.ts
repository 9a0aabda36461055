// What is said of gateways in a word. Pure.
import type { Gateway } from '../api/client';

/** After how long without a word a gateway is shown as away; it comes every few seconds. */
const quiet = 60_000; // ms

/** What a gateway is, in a word, and why. */
export function stateOf(g: Gateway, now: number): [state: string, why: string] {
  if (!g.seen) return ['waiting', 'It has never connected.'];
  if (now - Date.parse(g.seen.at) > quiet) return ['away', 'It keeps serving its last known versions.'];
  const ill = (g.seen.holds ?? []).find((h) => h.state !== 'ready');
  return ill ? [ill.state, ill.reason ? `${ill.deployment}: ${ill.reason}` : ill.deployment] : ['ready', ''];
}

/** What a gateway is not given, and why, a line each. */
export const leftOut = (g: Gateway) => (g.seen?.left_out ?? []).map((l) => `${l.deployment}: ${l.reason}`).join('\n');
