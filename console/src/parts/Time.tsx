import { useSyncExternalStore } from 'react';
import { useZone } from '../frame/settings';
import { ago, time } from './format';

let now = Date.now();
const watchers = new Set<() => void>();
setInterval(() => {
  now = Date.now();
  watchers.forEach((w) => w());
}, 10_000);

const subscribe = (watcher: () => void) => {
  watchers.add(watcher);
  return () => watchers.delete(watcher);
};

/** The time of day, kept fresh to ten seconds. */
export const useNow = () => useSyncExternalStore(subscribe, () => now);

/** A time in the reader's zone; both zones when pointed at. */
export function Time({ at, form = 'minute', relative = false }: { at: string | null | undefined; form?: 'date' | 'minute' | 'second'; relative?: boolean }) {
  const zone = useZone();
  const clock = useNow();
  if (!at || at.startsWith('0001-')) return <span className="faint">–</span>;
  const both = `${time(at, 'utc', 'second')} UTC\n${time(at, 'local', 'second')} local`;
  return (
    <time dateTime={at} title={both} className="num">
      {relative ? ago(at, clock) : time(at, zone, form)}
    </time>
  );
}
