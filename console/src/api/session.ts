// The session: the token that the reader pasted, or a login at an identity provider. The
// token lives in this tab's sessionStorage and in request headers; never in a URL, a cookie
// or a log. A login is a cookie that no script can read.
import { useSyncExternalStore } from 'react';

const key = 'falaj.token';
const watchers = new Set<() => void>();
let why = '';

/** Stands for the token while the browser's cookie is the session. */
export const byCookie = 'cookie';

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

/** Why a login at a provider failed: the server says so in a cookie for this page. */
export function loginProblem(): string {
  for (const part of document.cookie.split('; ')) {
    const [name = '', value = ''] = part.split(/=(.*)/s);
    if (name !== 'falaj-login-problem' && name !== '__Host-falaj-login-problem') continue;
    document.cookie = `${name}=; Max-Age=0; Path=/; SameSite=Strict${name.startsWith('__Host-') ? '; Secure' : ''}`;
    try {
      return decodeURIComponent(value);
    } catch {
      return value;
    }
  }
  return '';
}

const subscribe = (watcher: () => void) => {
  watchers.add(watcher);
  return () => watchers.delete(watcher);
};

export const useToken = () => useSyncExternalStore(subscribe, session.token);
