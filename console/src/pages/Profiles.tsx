import { Button, NativeSelect } from '@mantine/core';
import { useQueryClient } from '@tanstack/react-query';
import { useState } from 'react';
import { inProject, post, type JobDetail, type Profile } from '../api/client';
import { useProfiles } from '../api/queries';
import { percent } from '../parts/format';
import { Flame } from '../parts/Flame';
import { Empty, Failed, Panel, Wait } from '../parts/State';
import { Time } from '../parts/Time';

const kinds = ['compute', 'memory', 'communication', 'idle'] as const;
const margin = 120; // seconds that an answer may take beyond the look itself
const shown = 8; // profiles in sight until all are asked for

/** How workers of a job spent their time, whenever somebody looked. */
export function Profiles({ project, job }: { project: string; job: JobDetail }) {
  const profiles = useProfiles(project, job.id);
  const [chosen, choose] = useState('');
  const [all, setAll] = useState(false);
  const [problem, setProblem] = useState<unknown>();
  const list = profiles.data ?? [];
  const one = list.find((p) => p.id === chosen) ?? list[0];
  const runs = job.state === 'running';
  return (
    <Panel title="Profiles" note={runs ? <Look project={project} job={job} done={choose} failed={setProblem} /> : undefined} wide>
      {problem != null && <Failed error={problem} />}
      {profiles.error ? (
        <Failed error={profiles.error} again={() => void profiles.refetch()} />
      ) : profiles.isPending ? (
        <Wait what="Loading the profiles …" />
      ) : !one ? (
        <Empty title="No profiles" command={runs ? `falaj job profile ${job.id} -p ${project}` : undefined}>
          A profile shows how a worker spends its time, by category and function. {runs ? 'The job keeps running.' : 'Only a running job can be profiled.'}
        </Empty>
      ) : (
        <>
          <table className="plain profiles">
            <thead>
              <tr><th scope="col">When</th><th scope="col">Worker</th><th scope="col">Tool</th><th scope="col" className="shares">Time by category</th>{kinds.map((k) => <th key={k} scope="col" className="right"><span className={`kind ${k}`}>{k}</span></th>)}</tr>
            </thead>
            <tbody>
              {list.slice(0, all ? undefined : shown).map((p) => (
                <tr key={p.id} className={p === one ? 'chosen' : undefined}>
                  <th scope="row"><button type="button" aria-pressed={p === one} title={`Profile ${p.id}`} onClick={() => choose(p.id)}><Time at={p.at} form="second" /></button></th>
                  <td className="num">{p.worker}{p.number > 1 && <span className="dim"> attempt {p.number}</span>}</td>
                  <td>{p.tool} <span className="dim num">{p.seconds} s</span></td>
                  <td><Shares p={p} /></td>
                  {kinds.map((k) => <td key={k} className="right num">{percent(p[k])}</td>)}
                </tr>
              ))}
            </tbody>
          </table>
          {list.length > shown && <Button variant="default" size="xs" onClick={() => setAll(!all)}>{all ? `Only the newest ${shown}` : `All ${list.length} profiles`}</Button>}
          <Where key={one.id} project={project} p={one} />
        </>
      )}
    </Panel>
  );
}

/** The four shares of a profile as one bar. */
function Shares({ p }: { p: Profile }) {
  const text = kinds.map((k) => `${k} ${percent(p[k])}`).join(', ');
  return (
    <div className="shares-bar" role="img" aria-label={text} title={text}>
      {kinds.filter((k) => p[k] > 0).map((k) => <span key={k} className={`kind-${k}`} style={{ flexGrow: 100 * p[k], flexBasis: 0 }} />)}
    </div>
  );
}

/** The functions of a profile, as bars and as a flame graph. */
function Where({ project, p }: { project: string; p: Profile }) {
  const top = p.top ?? [];
  const most = Math.max(...top.map((f) => f.share), 1e-9);
  return (
    <div className="chosen">
      <h3>Where worker {p.worker} spent its time <span className="dim">{p.version?.startsWith(p.tool) ? p.version : `${p.tool} ${p.version ?? ''}`}, {p.seconds} s, {p.processes === 1 ? 'one process' : `${p.processes} processes`}, by {p.by.name || p.by.id}</span></h3>
      <table className="plain frames">
        <thead><tr><th scope="col">{p.tool === 'py-spy' ? 'Function' : 'Operation'}</th><th scope="col" aria-label="Share as a bar" /><th scope="col" className="right">Share</th><th scope="col" className="right">Waiting</th><th scope="col">Kind</th></tr></thead>
        <tbody>
          {top.map((f) => (
            <tr key={`${f.name} ${f.where} ${f.kind}`}>
              <th scope="row" title={f.where ? `${f.name} (${f.where})` : f.name}>{f.name} <span className="dim">{f.where}</span></th>
              <td>
                <div className="bar" style={{ width: `${(100 * f.share) / most}%` }} aria-hidden="true">
                  <span className={`kind-${f.kind}`} style={{ flexGrow: 100 * (f.share - f.waiting), flexBasis: 0 }} />
                  <span className={`kind-${f.kind} waits`} style={{ flexGrow: 100 * f.waiting, flexBasis: 0 }} />
                </div>
              </td>
              <td className="right num">{percent(f.share, 1)}</td>
              <td className="right num dim">{f.waiting > 0 ? percent(f.waiting, 1) : ''}</td>
              <td><span className={`kind ${f.kind}`}>{f.kind}</span></td>
            </tr>
          ))}
        </tbody>
      </table>
      <p className="caption dim">{p.tool === 'py-spy' ? 'Time in a function itself, not in those that it calls. The hatched part it waited.' : 'Time of an operation. Communication counts where no computing hides it; it is hatched.'}</p>
      {p.tool === 'py-spy' && p.artifacts?.length ? <Flame project={project} profile={p} /> : null}
      {p.artifacts?.length ? <p className="caption dim">What the tool wrote is in run <span className="num">{p.run_id}</span>, below <code>profiles/{p.id}</code>.</p> : null}
    </div>
  );
}

/** Asks for a profile, and waits for it. */
function Look({ project, job, done, failed }: { project: string; job: JobDetail; done: (id: string) => void; failed: (why: unknown) => void }) {
  const client = useQueryClient();
  const [ask, setAsk] = useState({ worker: '0', tool: 'py-spy', seconds: '10' });
  const [looking, setLooking] = useState(false);
  const workers = job.tries?.at(-1)?.workers ?? 1;
  const set = (name: keyof typeof ask) => (e: { currentTarget: { value: string } }) => setAsk({ ...ask, [name]: e.currentTarget.value });
  const look = async () => {
    setLooking(true);
    failed(undefined);
    try {
      const seconds = Number(ask.seconds);
      const p = await post<Profile>(inProject(project, 'jobs', job.id, 'profiles'), { worker: Number(ask.worker), tool: ask.tool, seconds }, (seconds + margin) * 1000);
      await client.invalidateQueries({ queryKey: ['job', project, job.id, 'profiles'] });
      done(p.id);
    } catch (e) {
      failed(e);
    }
    setLooking(false);
  };
  return (
    <form className="tools" onSubmit={(e) => (e.preventDefault(), void look())}>
      {workers > 1 && <NativeSelect size="xs" aria-label="Worker" value={ask.worker} onChange={set('worker')} data={Array.from({ length: workers }, (_, i) => ({ value: String(i), label: `worker ${i}` }))} />}
      <NativeSelect size="xs" aria-label="Tool" value={ask.tool} onChange={set('tool')} data={['py-spy', 'torch', 'nsys']} />
      <NativeSelect size="xs" aria-label="For how long" value={ask.seconds} onChange={set('seconds')} data={['2', '10', '30', '60'].map((s) => ({ value: s, label: `${s} s` }))} />
      <Button type="submit" size="xs" variant="default" loading={looking}>Profile now</Button>
      {looking && <span role="status">Looking for {ask.seconds} s …</span>}
    </form>
  );
}
