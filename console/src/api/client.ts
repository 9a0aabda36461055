// Requests to the API of the server that served this page.
import type { components } from '../generated/schema';
import { byCookie, session } from './session';

type Schemas = components['schemas'];

export type Whoami = Schemas['Self'];
export type Project = Schemas['project.Project'];
export type Job = Schemas['training.Job'];
export type Sweep = Schemas['sweep.Sweep'];
export type SweepSummary = Schemas['sweep.Summary'];
export type Trial = Schemas['sweep.Shown'];
export type Run = Schemas['RunView'];
export type Figure = Schemas['picture.Figure'];
export type Dataset = Schemas['dataset.Dataset'];
export type Version = Schemas['dataset.Version'];
export type Verdict = Schemas['expectation.Result'];
export type DatasetProfile = Schemas['dataset.Profile'];
export type ColumnProfile = Schemas['statistics.ColumnProfile'];
export type FeatureView = Schemas['feature.View'];
export type FeatureService = Schemas['feature.ServiceDefinition'];
export type Definition = Schemas['feature.Listed'];
export type Freshness = Schemas['feature.Freshness'];
export type FeatureLineage = Schemas['feature.Lineage'];
export type Hit = Schemas['search.Hit'];
export type Graph = Schemas['openlineage.Graph'];
export type GraphNode = Schemas['openlineage.Node'];
export type Model = Schemas['ModelView'];
export type Profile = Schemas['training.Profile'];
export type Optimization = Schemas['optimize.Report'];
export type Top = Schemas['training.Top'];
export type Member = Schemas['engine.Member'];
export type Gateway = Schemas['gateway.Gateway'];
export type AuditEntry = Schemas['AuditView'];

/** Attempt is what a job's view=full adds; the API's description leaves it open. */
export interface Attempt {
  id: string;
  number: number;
  state: string;
  pool?: string;
  class?: string;
  reason?: string;
  started_at?: string;
  ended_at?: string;
  workers?: number;
}

export type JobDetail = Job & { tries: Attempt[] | null; why: string[] | null };

/** Problem is the API's refusal (RFC 9457), or that no answer came. */
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly kind: string,
    detail: string,
    readonly hint = '',
  ) {
    super(detail);
  }
}

const timeout = 30_000; // ms until an answer that is not a stream

/** Sends one request. A 401 ends the session. */
export async function send(path: string, init: RequestInit = {}, token = session.token()): Promise<Response> {
  let answer: Response;
  try {
    answer = await fetch(path, {
      ...init,
      headers: token === byCookie ? init.headers : { ...init.headers, Authorization: `Bearer ${token}` },
      credentials: token === byCookie ? 'same-origin' : 'omit',
      cache: 'no-store',
      redirect: 'error',
      referrerPolicy: 'no-referrer',
    });
  } catch (e) {
    if (init.signal?.aborted) throw e;
    throw new Problem(0, 'unavailable', 'The server does not answer.', 'Check that falaj is running and that this machine reaches it.');
  }
  if (answer.ok) return answer;
  let p: { detail?: string; title?: string; kind?: string; hint?: string } = {};
  try {
    p = await answer.json();
  } catch {
    // Not a problem document; the status says enough.
  }
  if (answer.status === 401 && token === session.token()) session.end(token === byCookie ? 'Your login has ended. Log in again.' : 'The token is no longer accepted: it ended, or it was revoked.');
  throw new Problem(answer.status, p.kind ?? '', p.detail ?? p.title ?? `The server answered ${answer.status}.`, p.hint);
}

export async function get<T>(path: string, signal?: AbortSignal, token?: string): Promise<T> {
  const limit = AbortSignal.timeout(timeout);
  const answer = await send(path, { signal: signal ? AbortSignal.any([signal, limit]) : limit }, token);
  return (await answer.json()) as T;
}

/** limit is in ms. */
export async function post<T>(path: string, body: unknown, limit = timeout): Promise<T> {
  const answer = await send(path, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json', 'Idempotency-Key': crypto.randomUUID() },
    body: JSON.stringify(body),
    signal: AbortSignal.timeout(limit),
  });
  const text = await answer.text();
  return (text ? JSON.parse(text) : undefined) as T;
}

export interface Provider {
  name: string;
  title: string;
}

/** The identity providers that people log in at, and whether this browser is logged in already. */
export async function providers(signal?: AbortSignal): Promise<{ list: readonly Provider[]; loggedIn: boolean }> {
  try {
    const answer = await fetch('/auth/providers', { credentials: 'same-origin', cache: 'no-store', signal });
    if (!answer.ok) return { list: [], loggedIn: false };
    const told = (await answer.json()) as { providers: Provider[] | null; logged_in?: boolean };
    return { list: told.providers ?? [], loggedIn: told.logged_in === true };
  } catch {
    return { list: [], loggedIn: false };
  }
}

/** Ends the session, here and, of a login at a provider, on the server. */
export async function logOut(): Promise<void> {
  if (session.token() === byCookie) {
    try {
      await post('/api/v1/logout', undefined);
    } catch {
      // it has ended already, or the server does not answer; the cookie ends by itself
    }
  }
  session.end();
}

export interface Page<T> {
  items: T[] | null;
  next_page_token?: string;
}

/** Path of something in a project; each part is escaped. */
export const inProject = (project: string, ...parts: string[]) =>
  ['/api/v1/projects', project, ...parts].map((p, i) => (i === 0 ? p : encodeURIComponent(p))).join('/');
