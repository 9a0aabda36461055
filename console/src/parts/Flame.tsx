// Which functions called which: a row for each call, as wide as its share of the
// time. Outermost on top.
import { useQuery } from '@tanstack/react-query';
import { useMemo, useRef, useState, type KeyboardEvent } from 'react';
import { send, type Profile } from '../api/client';
import { boxes, flame, type Frame } from './flame';
import { percent } from './format';
import { Failed, Wait } from './State';

const row = 20; // px

export function Flame({ project, profile }: { project: string; profile: Profile }) {
  const path = profile.artifacts?.find((a) => a.endsWith('/all.folded')) ?? '';
  const stacks = useQuery({
    queryKey: ['profile', project, profile.id],
    queryFn: async ({ signal }) => (await send(`/get-artifact?run_id=${encodeURIComponent(profile.run_id)}&path=${encodeURIComponent(path)}`, { headers: { 'Falaj-Project': project }, signal })).text(),
    enabled: path !== '',
    staleTime: Infinity, // it never changes
  });
  const root = useMemo(() => (stacks.data == null ? undefined : flame(stacks.data)), [stacks.data]);
  if (path === '') return null;
  return (
    <>
      <h4>Call stacks <span className="legend">hover over a call for its share, click to zoom</span></h4>
      {stacks.error ? <Failed error={stacks.error} again={() => void stacks.refetch()} /> : !root ? <Wait what="Loading the stacks …" /> : root.n === 0 ? <p className="dim">No stacks were sampled.</p> : <Graph root={root} />}
    </>
  );
}

function Graph({ root }: { root: Frame }) {
  const [zoom, setZoom] = useState<Frame[]>([root]);
  const drawn = useMemo(() => boxes(zoom), [zoom]);
  const [at, setAt] = useState(0);
  const place = useRef<HTMLDivElement>(null);
  const depth = Math.max(...drawn.map((b) => b.path.length));
  const pressed = (e: KeyboardEvent) => {
    const here = drawn[at]!;
    const beside = drawn.filter((b) => b.path.length === here.path.length);
    const to: Record<string, typeof here | undefined> = {
      ArrowDown: drawn.find((b) => b.path.length === here.path.length + 1 && b.path.at(-2) === here.path.at(-1)),
      ArrowUp: drawn.find((b) => b.path.at(-1) === here.path.at(-2)),
      ArrowRight: beside[beside.indexOf(here) + 1],
      ArrowLeft: beside[beside.indexOf(here) - 1],
    };
    if (!(e.key in to)) return;
    e.preventDefault();
    const next = to[e.key];
    if (!next) return;
    setAt(drawn.indexOf(next));
    (place.current?.children[drawn.indexOf(next)] as HTMLElement | undefined)?.focus();
  };
  return (
    <div ref={place} className="flame" role="group" aria-label="Flame graph; the arrow keys go through the calls" style={{ height: depth * row }} onKeyDown={pressed}>
      {drawn.map((b, i) => {
        const f = b.path.at(-1)!;
        const words = `${f.name}${f.where && ` (${f.where})`}, ${percent(f.n / root.n, 1)}`;
        return (
          <button
            key={i} type="button" tabIndex={i === at ? 0 : -1} title={words} aria-label={words} className={`f${b.path.length % 3}${b.path.length < zoom.length ? ' around' : ''}`}
            style={{ left: `${100 * b.from}%`, width: `${100 * b.width}%`, top: (b.path.length - 1) * row }}
            onClick={() => (setZoom(b.path), setAt(b.path.length - 1))}
          >
            {b.width > 0.02 && f.name}
          </button>
        );
      })}
    </div>
  );
}
