// The keyboard: "g d" and its like, "/" and "?". Keys that are typed into a
// field are the field's.
import { useEffect } from 'react';

const patience = 1200; // ms between the two keys of a sequence

export function useKeys(handlers: Readonly<Record<string, () => void>>) {
  useEffect(() => {
    let before = '';
    let at = 0;
    const pressed = (e: KeyboardEvent) => {
      const target = e.target as HTMLElement | null;
      if (e.ctrlKey || e.metaKey || e.altKey || e.defaultPrevented) return;
      if (target?.closest('input, textarea, select, [contenteditable], dialog')) return;
      const sequence = before && performance.now() - at < patience ? `${before} ${e.key}` : e.key;
      const handler = handlers[sequence] ?? handlers[e.key];
      before = e.key;
      at = performance.now();
      if (!handler) return;
      before = '';
      e.preventDefault();
      handler();
    };
    window.addEventListener('keydown', pressed);
    return () => window.removeEventListener('keydown', pressed);
  }, [handlers]);
}
