// The session: the token that the reader pasted. It lives in this tab's
// sessionStorage and in request headers; never in a URL, a cookie or a log.
import { useSyncExternalStore } from 'react';

const key = 'falaj.token';
const watchers = new Set<() => void>();
let why = '';

export const session = {
  token: (): string => sessionStorage.getItem(key) ?? '',
  /** Why the last session ended, for the login page; empty when the reader ended it. */
  why: (): string => why,
  begin(token: string) {
    why = '';
    sessionStorage.setItem(key, token);
    watchers.forEach((w) => w());
  },
  end(reason = '') {
    if (!sessionStorage.getItem(key)) return;
    why = reason;
    sessionStorage.removeItem(key);
    watchers.forEach((w) => w());
  },
};

const subscribe = (watcher: () => void) => {
  watchers.add(watcher);
  return () => watchers.delete(watcher);
};

export const useToken = () => useSyncExternalStore(subscribe, session.token);
