import type { Target } from '../api/monitoring';

/** Versions with the share of the requests that each answers, as one bar. */
export function Weights({ targets, words = true }: { targets: readonly Target[]; words?: boolean }) {
  const answering = targets.filter((t) => t.role === 'stable' || t.role === 'canary');
  const shadow = targets.find((t) => t.role === 'shadow');
  const text = [...answering.map((t) => `version ${t.version} (${t.role}) ${t.weight} %`), ...(shadow ? [`version ${shadow.version} shadow`] : [])].join(', ');
  return (
    <div className="weights" role="img" aria-label={text} title={text}>
      <div className="bar">
        {answering.filter((t) => t.weight > 0).map((t) => (
          <span key={t.role} className={t.role || undefined} style={{ flexGrow: t.weight, flexBasis: 0 }} />
        ))}
      </div>
      {words && (
        <span className="words num">
          {answering.map((t) => `v${t.version} ${t.weight} %`).join(' · ')}
          {shadow && ` · v${shadow.version} shadow`}
        </span>
      )}
    </div>
  );
}
