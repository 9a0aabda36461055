const paths = {
  overview: 'M4 13h7V4H4zM13 20h7V11h-7zM4 20h7v-4H4zM13 8h7V4h-7z',
  deployments: 'M12 3l8 4.5v9L12 21l-8-4.5v-9zM12 12l8-4.5M12 12v9M12 12L4 7.5',
  gateways: 'M3 21V9l9-6 9 6v12M3 21h18M9 21v-7h6v7',
  monitoring: 'M3 12h4l3-8 4 16 3-8h4',
  jobs: 'M5 4l14 8-14 8z',
  runs: 'M4 20V4M4 20h16M7 15l4-5 3 3 5-7',
  sweeps: 'M4 20V4M4 20h16M8 16h.01M11 11h.01M14 14h.01M16 7h.01M19 10h.01',
  datasets: 'M4 6c0-1.7 3.6-3 8-3s8 1.3 8 3-3.6 3-8 3-8-1.3-8-3zM4 6v12c0 1.7 3.6 3 8 3s8-1.3 8-3V6M4 12c0 1.7 3.6 3 8 3s8-1.3 8-3',
  features: 'M4 6h10M18 6h2M4 12h2M10 12h10M4 18h10M18 18h2M14 4v4M6 10v4M14 16v4',
  models: 'M12 3v4M12 17v4M3 12h4M17 12h4M12 7a5 5 0 100 10 5 5 0 000-10z',
  audit: 'M7 3h8l4 4v14H7a2 2 0 01-2-2V5a2 2 0 012-2zM9 12h6M9 16h6M9 8h2',
  sun: 'M12 8a4 4 0 100 8 4 4 0 000-8zM12 2v2M12 20v2M4.9 4.9l1.4 1.4M17.7 17.7l1.4 1.4M2 12h2M20 12h2M4.9 19.1l1.4-1.4M17.7 6.3l1.4-1.4',
  moon: 'M20 14.5A8 8 0 019.5 4a8 8 0 1010.5 10.5z',
  system: 'M4 5h16v11H4zM9 20h6M12 16v4',
  help: 'M9 9a3 3 0 114.5 2.6c-1 .6-1.5 1.2-1.5 2.4M12 18h.01',
  leave: 'M14 4h4a2 2 0 012 2v12a2 2 0 01-2 2h-4M4 12h11M11 8l4 4-4 4',
  search: 'M11 4a7 7 0 100 14 7 7 0 000-14zM20 20l-4-4',
  lineage: 'M3 9.5h5v5H3zM16 3.5h5v5h-5zM16 15.5h5v5h-5zM8 12h3.5M16 6h-2a2.5 2.5 0 00-2.5 2.5v7A2.5 2.5 0 0014 18h2',
  bolt: 'M13 3L5 14h6l-1 7 8-11h-6z',
} as const;

export type IconName = keyof typeof paths;

/** A picture beside a word; it says nothing itself. */
export function Icon({ name, size = 18 }: { name: IconName; size?: number }) {
  return (
    <svg width={size} height={size} viewBox="0 0 24 24" fill="none" stroke="currentColor" strokeWidth="1.7" strokeLinecap="round" strokeLinejoin="round" aria-hidden="true">
      <path d={paths[name]} />
    </svg>
  );
}

export const Mark = ({ size = 28 }: { size?: number }) => (
  <svg width={size} height={size} viewBox="0 0 32 32" aria-hidden="true">
    <rect width="32" height="32" rx="8" fill="#0b5c63" />
    <path d="M6 11c5 0 5 4 10 4s5-4 10-4M6 17c5 0 5 4 10 4s5-4 10-4" fill="none" stroke="#fff" strokeWidth="2.6" strokeLinecap="round" />
  </svg>
);
