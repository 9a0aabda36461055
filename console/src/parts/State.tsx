import { Badge, Button, Loader } from '@mantine/core';
import type { ReactNode } from 'react';
import { Problem, type Figure } from '../api/client';

type Tone = 'good' | 'busy' | 'warn' | 'bad' | 'quiet';

const tones: Record<string, Tone> = {
  ready: 'good', ok: 'good', finished: 'good', succeeded: 'good', promoted: 'good', done: 'good', complete: 'good', allowed: 'good', live: 'good', accepted: 'good',
  running: 'busy', loading: 'busy', starting: 'busy', placing: 'busy', claimed: 'busy', connecting: 'busy', checkpointing: 'busy',
  queued: 'quiet', scheduled: 'quiet', killed: 'quiet', waiting: 'quiet', cancelled: 'quiet', skipped: 'quiet', ended: 'quiet', stopped: 'quiet', inconclusive: 'warn',
  drifted: 'warn', unjudged: 'warn', quarantined: 'warn', rolled_back: 'warn', away: 'warn', refused: 'bad',
  degraded: 'bad', failed: 'bad', lost: 'bad', denied: 'bad', rejected: 'bad',
};

const words = (state: string) => state.replaceAll('_', ' ');

/** A state as a word with a dot: the colour repeats what the word says. */
export function StateBadge({ state, title, many }: { state: string; title?: string; many?: number }) {
  return (
    <span className={`state ${tones[state] ?? 'quiet'}`} title={title}>
      {many != null && `${many} `}
      {words(state)}
    </span>
  );
}

export const Tag = ({ children }: { children: ReactNode }) => (
  <Badge variant="default" size="sm" tt="none" fw={500}>
    {children}
  </Badge>
);

/** Nothing is here, and what to do about it. */
export function Empty({ title, children, command }: { title: string; children?: ReactNode; command?: string }) {
  return (
    <div className="empty">
      <h3>{title}</h3>
      {children && <p>{children}</p>}
      {command && <pre>{command}</pre>}
    </div>
  );
}

/** Something did not work, and what to do about it. */
export function Failed({ error, again }: { error: unknown; again?: () => void }) {
  const p = error instanceof Problem ? error : new Problem(0, '', error instanceof Error ? error.message : String(error));
  const title = p.status === 403 ? 'Permission denied' : p.status === 404 ? 'Not found' : p.status === 0 ? 'No answer' : 'Request failed';
  return (
    <div className="empty bad" role="alert">
      <h3>{title}</h3>
      <p>{p.message}</p>
      {p.hint && <p className="dim">{p.hint}</p>}
      {again && (
        <Button variant="default" size="xs" onClick={again}>
          Try again
        </Button>
      )}
    </div>
  );
}

export const Wait = ({ what }: { what: string }) => (
  <div className="wait" role="status">
    <Loader size="sm" /> <span>{what}</span>
  </div>
);

export function Panel({ title, note, children, wide, id }: { title: string; note?: ReactNode; children: ReactNode; wide?: boolean; id?: string }) {
  return (
    <section className={`panel${wide ? ' wide' : ''}`} aria-labelledby={id ?? title} id={id && `${id}-panel`}>
      <header>
        <h2 id={id ?? title}>{title}</h2>
        {note && <div className="note">{note}</div>}
      </header>
      {children}
    </section>
  );
}

/** What the server drew. */
export const Picture = ({ figure }: { figure: Figure }) => (
  <Panel title={figure.title} note={figure.words} wide>
    <img className="picture" alt={figure.title} src={`data:image/svg+xml,${encodeURIComponent(figure.svg)}`} />
  </Panel>
);
