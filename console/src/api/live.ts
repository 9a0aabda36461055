// What happens in the project, as it happens. Events make what is shown stale;
// the newest are kept for the overview.
import { useQueryClient, type QueryClient } from '@tanstack/react-query';
import { useEffect, useSyncExternalStore } from 'react';
import { inProject, Problem, send } from './client';
import { Parser } from './sse';

export interface Happened {
  id: string;
  name: string;
  time: string;
  project: string;
  body: Record<string, unknown>;
}

export type Link = 'connecting' | 'live' | 'away' | 'refused';

interface State {
  link: Link;
  events: readonly Happened[]; // newest first
}

const kept = 200;
const pause = 1000; // ms between two rounds of asking again
let state: State = { link: 'connecting', events: [] };
const watchers = new Set<() => void>();

function set(next: Partial<State>) {
  state = { ...state, ...next };
  watchers.forEach((w) => w());
}

const subscribe = (watcher: () => void) => {
  watchers.add(watcher);
  return () => watchers.delete(watcher);
};

export const useLive = () => useSyncExternalStore(subscribe, () => state);

/** The first words of the keys of queries that an event makes stale. */
export function stale(event: string): string[] {
  const noun = event.split('.')[0] ?? '';
  switch (noun) {
    case 'deployment':
    case 'rollout':
    case 'act':
      return ['deployment'];
    case 'monitor':
    case 'label':
      return ['monitor', 'deployment'];
    case 'job':
    case 'workload':
    case 'run':
      return ['job'];
    case 'dataset':
    case 'feature':
    case 'model':
    case 'project':
      return [noun];
    default:
      return [];
  }
}

/** Follows a project's events until signal; connects again with growing pauses. */
async function follow(project: string, client: QueryClient, signal: AbortSignal) {
  const parser = new Parser();
  const dirty = new Set<string>();
  let timer: ReturnType<typeof setTimeout> | undefined;
  const mark = (keys: string[]) => {
    keys.forEach((k) => dirty.add(k));
    timer ??= setTimeout(() => {
      timer = undefined;
      const nouns = [...dirty, 'audit'];
      dirty.clear();
      if (!signal.aborted) void client.invalidateQueries({ predicate: (q) => nouns.includes(String(q.queryKey[0])) && q.queryKey[1] === project });
    }, pause);
  };
  let wait = pause;
  while (!signal.aborted) {
    try {
      const headers: Record<string, string> = { Accept: 'text/event-stream' };
      if (parser.id) headers['Last-Event-ID'] = parser.id;
      const answer = await send(inProject(project, 'events'), { headers, signal });
      set({ link: 'live' });
      if (wait > pause) mark(['deployment', 'monitor', 'job', 'dataset', 'feature', 'model', 'project']); // something may have been missed
      wait = pause;
      const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        const messages = parser.feed(value);
        if (messages.length === 0) continue;
        const happened: Happened[] = [];
        for (const m of messages) {
          const body = JSON.parse(m.data) as Omit<Happened, 'id'>;
          happened.push({ ...body, id: m.id });
          mark(stale(m.event));
        }
        set({ events: [...happened.reverse(), ...state.events].slice(0, kept) });
      }
    } catch (e) {
      if (signal.aborted) return;
      if (e instanceof Problem && (e.status === 401 || e.status === 403 || e.status === 404)) {
        set({ link: 'refused' });
        return;
      }
      if (e instanceof Problem && e.status === 400) parser.id = ''; // the place is no longer known: from now on
    }
    set({ link: 'away' });
    wait = Math.min(Math.max(wait * 2, parser.retry), 30_000);
    await new Promise<void>((done) => {
      const again = setTimeout(done, wait);
      signal.addEventListener('abort', () => (clearTimeout(again), done()), { once: true });
    });
  }
}

/** Keeps what is shown of the project fresh while the component is there. */
export function useFollow(project: string) {
  const client = useQueryClient();
  useEffect(() => {
    const stop = new AbortController();
    set({ link: 'connecting', events: [] });
    void follow(project, client, stop.signal);
    return () => stop.abort();
  }, [project, client]);
}
