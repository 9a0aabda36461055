// The keyboard: "g d" and its like, "/" and "?". Keys that are typed into a
// field are the field's.
import { useEffect, useRef } from 'react';

const patience = 1200; // ms between the two keys of a sequence

export function useKeys(handlers: Readonly<Record<string, () => void>>) {
  const before = useRef({ key: '', at: 0 }); // outlives what is drawn between the two keys
  useEffect(() => {
    const pressed = (e: KeyboardEvent) => {
      const target = e.target as HTMLElement | null;
      if (e.ctrlKey || e.metaKey || e.altKey || e.defaultPrevented) return;
      if (target?.closest('input, textarea, select, [contenteditable], dialog')) return;
      const { key, at } = before.current;
      const sequence = key && e.timeStamp - at < patience ? `${key} ${e.key}` : e.key;
      const handler = handlers[sequence] ?? handlers[e.key];
      before.current = { key: handler ? '' : e.key, at: e.timeStamp };
      if (!handler) return;
      e.preventDefault();
      handler();
    };
    window.addEventListener('keydown', pressed);
    return () => window.removeEventListener('keydown', pressed);
  }, [handlers]);
}
