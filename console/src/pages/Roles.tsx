import type { JobDetail, Member } from '../api/client';
import { useTop } from '../api/queries';
import { Failed, Panel, StateBadge } from '../parts/State';

const shown = 16; // workers of a role

/** The roles of a gang whose workers differ, and how each worker of the newest attempt is. */
export function Roles({ project, job }: { project: string; job: JobDetail }) {
  const top = useTop(project, job);
  const members = top.data?.workers ?? [];
  return (
    <Panel title="Roles" note={top.data?.number ? `Attempt ${top.data.number}` : undefined} wide>
      {top.error && <Failed error={top.error} again={() => void top.refetch()} />}
      <table className="plain">
        <thead><tr><th scope="col">Role</th><th scope="col">Workers</th><th scope="col">Worker</th><th scope="col">State</th><th scope="col">Node</th><th scope="col">Notes</th></tr></thead>
        {(job.spec.roles ?? []).map((r) => {
          const own = members.filter((m) => m.role === r.name);
          const more = own.length - shown;
          const rows = Math.min(own.length, shown) + (more > 0 ? 1 : 0);
          const name = (
            <>
              <th scope="rowgroup" rowSpan={Math.max(rows, 1)}>{r.name}</th>
              <td rowSpan={Math.max(rows, 1)} className="num">{r.workers}</td>
            </>
          );
          return (
            <tbody key={r.name}>
              {rows === 0 && <tr>{name}<td colSpan={4} className="faint">not placed yet</td></tr>}
              {own.slice(0, shown).map((m, i) => (
                <tr key={m.index}>
                  {i === 0 && name}
                  <td className="num">{m.index}</td>
                  <td><StateBadge state={m.state} /></td>
                  <td>{m.node || '–'}</td>
                  <td>{m.state === 'ended' || m.state === 'lost' ? how(m) : m.notes?.join('; ')}</td>
                </tr>
              ))}
              {more > 0 && <tr><td colSpan={4} className="dim">and {more} more: <code>falaj job top {job.id} -p {project}</code></td></tr>}
            </tbody>
          );
        })}
      </table>
    </Panel>
  );
}

function how(m: Member) {
  if (m.reason === 'exited') return `exited with code ${m.exit_code}`;
  return [m.reason?.replaceAll('_', ' '), m.signal, m.message].filter(Boolean).join(', ');
}
