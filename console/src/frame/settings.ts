// What the reader likes, kept in this browser: nothing secret.
import { useSyncExternalStore } from 'react';
import type { Zone } from '../parts/format';

const watchers = new Set<() => void>();
const key = 'falaj.zone';

const subscribe = (watcher: () => void) => {
  watchers.add(watcher);
  return () => watchers.delete(watcher);
};

export const useZone = () => useSyncExternalStore(subscribe, (): Zone => (localStorage.getItem(key) === 'local' ? 'local' : 'utc'));

export function setZone(zone: Zone) {
  localStorage.setItem(key, zone);
  watchers.forEach((w) => w());
}

export const lastProject = {
  read: () => localStorage.getItem('falaj.project') ?? '',
  keep: (name: string) => localStorage.setItem('falaj.project', name),
};
