import { Button, Checkbox } from '@mantine/core';
import { useQueryClient } from '@tanstack/react-query';
import { useEffect, useRef, useState } from 'react';
import { inProject, post, Problem, send } from '../api/client';
import { ended, useJob } from '../api/queries';
import { Link } from 'wouter';
import { lineageOf } from '../frame/places';
import { Empty, Failed, Panel, StateBadge, Tag, Wait } from '../parts/State';
import { Time } from '../parts/Time';
import { Took } from './Jobs';
import { OptimizationPanel, optimises } from './Optimization';
import { Profiles } from './Profiles';
import { Roles } from './Roles';

export function JobPage({ project, id }: { project: string; id: string }) {
  const job = useJob(project, id);
  const client = useQueryClient();
  const [cancelling, setCancelling] = useState<'no' | 'asked' | 'sent'>('no');
  const [problem, setProblem] = useState<unknown>();
  if (job.isPending) return <Wait what="Loading the job …" />;
  if (job.error) return <Failed error={job.error} again={() => void job.refetch()} />;
  const j = job.data;
  const why = (j.why?.length ? j.why : [j.reason ?? '']).filter((w) => w && w !== j.state);
  const cancel = async () => {
    if (cancelling === 'no') return setCancelling('asked');
    setCancelling('sent');
    try {
      await post(inProject(project, 'jobs', id, 'cancel'), {});
      await client.invalidateQueries({ queryKey: ['job', project] });
    } catch (e) {
      setProblem(e);
    }
    setCancelling('no');
  };
  return (
    <div className="detail">
      <div className="factline">
        <dl className="facts">
        <div><dt>Name</dt><dd>{j.name}</dd></div>
        <div><dt>State</dt><dd><StateBadge state={j.state} /></dd></div>
        <div><dt>Pool</dt><dd>{j.pool || <span className="faint">–</span>}</dd></div>
        <div><dt>Submitted</dt><dd><Time at={j.submitted_at} /></dd></div>
        <div><dt>Took</dt><dd><Took job={j} /></dd></div>
        <div><dt>Run</dt><dd className="num">{j.run_id || <span className="faint">–</span>}</dd></div>
        <div><dt>Lineage</dt><dd><Link href={lineageOf(project, 'job', j.id)}>upstream and downstream</Link></dd></div>
        {j.model && <div><dt>Model</dt><dd>{j.model}</dd></div>}
        </dl>
      {!ended(j.state) && (
        <div className="act">
          <Button size="xs" variant="default" color="red" loading={cancelling === 'sent'} onClick={() => void cancel()} onBlur={() => cancelling === 'asked' && setCancelling('no')}>
            {cancelling === 'asked' ? 'Really cancel?' : 'Cancel job'}
          </Button>
        </div>
      )}
      </div>
      {problem != null && <Failed error={problem} />}
      <Panel title="Why" wide>
        {why.length > 0 ? <ul className="why">{why.map((w) => <li key={w}>{w}</li>)}</ul> : <p className="dim">{j.state === 'succeeded' ? 'The job succeeded.' : 'No wait reasons.'}</p>}
        {j.hint && <p className="dim">{j.hint}</p>}
      </Panel>
      {optimises(j) && <OptimizationPanel project={project} job={j} />}
      <Panel title="Attempts" wide>
        {j.tries?.length ? (
          <table className="plain">
            <thead><tr><th scope="col">Number</th><th scope="col">State</th><th scope="col">Pool</th><th scope="col">Started</th><th scope="col">Took</th><th scope="col">Why it ended</th></tr></thead>
            <tbody>
              {j.tries.map((a, i) => (
                <tr key={a.id}>
                  <th scope="row" className="num">{a.number ?? i + 1}</th>
                  <td><StateBadge state={a.state} /></td>
                  <td>{a.pool || '–'}</td>
                  <td><Time at={a.started_at} form="second" /></td>
                  <td><Took job={a} /></td>
                  <td>{a.class && <Tag>{a.class}</Tag>} {a.reason}</td>
                </tr>
              ))}
            </tbody>
          </table>
        ) : (
          <p className="dim">Not started yet.</p>
        )}
      </Panel>
      {(j.spec.roles?.length ?? 0) > 0 && <Roles project={project} job={j} />}
      {(j.tries?.length ?? 0) > 0 && <Profiles project={project} job={j} />}
      <Panel title="Inputs" wide>
        {j.inputs?.length ? (
          <ul className="why num">{j.inputs.map((i) => <li key={i.name}>{i.name} <span className="dim">{i.ref}</span></li>)}</ul>
        ) : (
          <p className="dim">No input datasets.</p>
        )}
      </Panel>
      <Log project={project} id={id} key={`${id} ${j.attempts}`} state={j.state} />
    </div>
  );
}

const kept = 5000; // lines

/** The newest lines of what the job writes, as it writes them. */
function Log({ project, id, state }: { project: string; id: string; state: string }) {
  const [lines, setLines] = useState<string[]>([]);
  const [cut, setCut] = useState(false);
  const [tail, setTail] = useState(true);
  const [over, setOver] = useState<unknown>(null); // true, or why it ended
  const box = useRef<HTMLPreElement>(null);
  const waits = state === 'queued';
  useEffect(() => {
    if (waits) return;
    const stop = new AbortController();
    let all: string[] = [];
    let rest = '';
    let frame = 0;
    const show = () => {
      frame = 0;
      setLines(rest ? [...all, rest] : all);
    };
    void (async () => {
      try {
        const answer = await send(inProject(project, 'jobs', id, 'logs') + '?follow=true', { signal: stop.signal });
        const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
        for (;;) {
          const { done, value } = await reader.read();
          if (done) break;
          const parts = (rest + value).split('\n');
          rest = (parts.pop() ?? '').slice(-10_000);
          all = all.concat(parts);
          if (all.length > kept) {
            all = all.slice(-kept);
            setCut(true);
          }
          frame ||= requestAnimationFrame(show);
        }
        setOver(true);
      } catch (e) {
        if (!stop.signal.aborted) setOver(e);
      }
    })();
    return () => {
      stop.abort();
      cancelAnimationFrame(frame);
    };
  }, [project, id, waits]);
  useEffect(() => {
    if (tail && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [lines, tail]);
  const nothing = lines.length === 0;
  return (
    <Panel title="Log" note={<Checkbox size="xs" label="Follow" checked={tail} onChange={(e) => setTail(e.currentTarget.checked)} />} wide>
      {over instanceof Problem && nothing ? (
        over.status === 404 ? <Empty title="No log yet">The log appears when an attempt starts.</Empty> : <Failed error={over} />
      ) : waits ? (
        <Empty title="No log yet">The log appears when an attempt starts.</Empty>
      ) : (
        <pre className="log" ref={box} tabIndex={0} aria-label="Log of the job">
          {cut && <span className="dim">… the newest {kept} lines{'\n'}</span>}
          {nothing ? <span className="dim">{over ? 'The log is empty.' : 'No output yet.'}</span> : lines.join('\n')}
        </pre>
      )}
    </Panel>
  );
}
