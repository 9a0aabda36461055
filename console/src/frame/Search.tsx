// The search box of the header: what `falaj search` finds, as it is typed. Results
// are links, by kind; the arrow keys go through them, Escape closes them.
import { TextInput } from '@mantine/core';
import { useDebouncedValue } from '@mantine/hooks';
import { useEffect, useRef, useState, type KeyboardEvent } from 'react';
import { Link, useLocation } from 'wouter';
import type { Hit } from '../api/client';
import { useSearch } from '../api/queries';
import { Icon } from '../parts/Icon';
import { kindsName, lineageOf, placeOf } from './places';

const pause = 250; // ms without a key before the server is asked

/** Where a hit leads. What others told of says its kind and namespace in words. */
function hrefOf(project: string, hit: Hit): string | undefined {
  if (hit.kind !== 'lineage') return placeOf(project, hit.kind, hit.name);
  const told = /^(dataset|job) in (.*)$/s.exec(hit.description ?? '');
  return told ? lineageOf(project, told[1]!, hit.name, told[2]) : undefined;
}

/** Where the words are, but for the name, which stands there. */
const found = (hit: Hit) => (hit.matches ?? []).filter((m) => m.field !== 'name' && m.field !== 'description').map((m) => `${m.field} ${m.value}`).join(', ');

export function Search({ project }: { project: string }) {
  const [location] = useLocation();
  const [text, setText] = useState('');
  const [open, setOpen] = useState(false);
  const box = useRef<HTMLFormElement>(null);
  const input = useRef<HTMLInputElement>(null);
  const [asked] = useDebouncedValue(text.trim(), pause);
  const hits = useSearch(project, asked);
  const groups = new Map<string, Hit[]>();
  for (const h of hits.data?.items ?? []) groups.set(h.kind, [...(groups.get(h.kind) ?? []), h]);
  const settled = asked === text.trim();
  const count = hits.data?.items?.length ?? 0;
  const words = !settled || hits.isFetching ? 'Searching …' : hits.error ? hits.error.message : count === 0 ? `Nothing has “${asked}”.` : `${count}${hits.data?.next_page_token ? ' and more' : ''} found`;

  useEffect(() => setOpen(false), [location]); // a result was opened
  useEffect(() => {
    const pressed = (e: globalThis.KeyboardEvent) => {
      if ((e.ctrlKey || e.metaKey) && !e.altKey && !e.shiftKey && e.key.toLowerCase() === 'k' && !document.querySelector('dialog[open]')) {
        e.preventDefault();
        input.current?.focus();
        input.current?.select();
      }
    };
    window.addEventListener('keydown', pressed);
    return () => window.removeEventListener('keydown', pressed);
  }, []);

  const move = (e: KeyboardEvent) => {
    if (e.key === 'Escape') {
      e.preventDefault();
      e.stopPropagation();
      if (document.activeElement === input.current && !open) setText('');
      input.current?.focus(); // which opens it
      setOpen(false);
      return;
    }
    const step = e.key === 'ArrowDown' ? 1 : e.key === 'ArrowUp' ? -1 : 0;
    if (!step || !open) return;
    e.preventDefault();
    const stops = [input.current!, ...(box.current?.querySelectorAll<HTMLElement>('.found a') ?? [])];
    stops[Math.max(0, Math.min(stops.length - 1, stops.indexOf(document.activeElement as HTMLElement) + step))]?.focus();
  };
  return (
    <form
      ref={box} role="search" className="search" onKeyDown={move}
      onSubmit={(e) => {
        e.preventDefault();
        box.current?.querySelector<HTMLElement>('.found a')?.click();
      }}
      onBlur={(e) => !box.current?.contains(e.relatedTarget) && setOpen(false)}
    >
      <TextInput
        ref={input} type="search" size="xs" placeholder="Search (Ctrl K)" aria-label={`Search ${project}`} aria-describedby="search-words" autoComplete="off" maxLength={256} value={text}
        leftSection={<Icon name="search" size={14} />}
        onFocus={() => setOpen(text.trim().length > 1)}
        onChange={(e) => {
          setText(e.currentTarget.value);
          setOpen(e.currentTarget.value.trim().length > 1);
        }}
      />
      <div className="found" hidden={!open}>
        <p id="search-words" role="status" className="dim small">{open ? words : ''}</p>
        {open && settled && [...groups].map(([kind, all]) => (
          <section key={kind} aria-label={kindsName(kind)}>
            <h2>{kindsName(kind)}</h2>
            <ul>
              {all.map((h) => {
                const href = hrefOf(project, h);
                const inside = (
                  <>
                    <strong>{h.name}</strong> <span className="dim">{[h.description, found(h)].filter(Boolean).join(' · ')}</span>
                  </>
                );
                return <li key={`${h.name} ${h.description}`}>{href ? <Link href={href}>{inside}</Link> : <span className="plainly">{inside}</span>}</li>;
              })}
            </ul>
          </section>
        ))}
        {open && <p className="dim small">All words must be there; <code>column:temp</code>, <code>owner:alice</code>, <code>tag:team=ops</code>, <code>kind:model</code> and <code>from:weather</code> say where.</p>}
      </div>
    </form>
  );
}
