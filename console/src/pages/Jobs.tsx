import { createColumnHelper } from '@tanstack/react-table';
import { useMemo } from 'react';
import { Link, useLocation } from 'wouter';
import type { Job } from '../api/client';
import { useJobs, useWhy } from '../api/queries';
import { pathOf } from '../frame/places';
import { DataTable } from '../parts/DataTable';
import { span } from '../parts/format';
import { Empty, StateBadge } from '../parts/State';
import { Time, useNow } from '../parts/Time';

const column = createColumnHelper<Job>();

/** How long a job runs or ran. */
export function Took({ job }: { job: Pick<Job, 'started_at' | 'ended_at'> }) {
  const now = useNow();
  if (!job.started_at) return <span className="faint">–</span>;
  return <span className="num">{span((job.ended_at ? Date.parse(job.ended_at) : now) - Date.parse(job.started_at))}</span>;
}

/** Why a job is where it is; a waiting one is asked. */
function Reason({ project, job }: { project: string; job: Job }) {
  const why = useWhy(project, job.id, job.state === 'queued');
  const text = job.state === 'queued' ? (why.data?.reasons?.join(' ') ?? job.reason ?? '') : (job.reason ?? '');
  return <span title={text}>{text}</span>;
}

export function JobsPage({ project }: { project: string }) {
  const [, go] = useLocation();
  const jobs = useJobs(project);
  const columns = useMemo(
    () => [
      column.accessor('name', { header: 'Name', meta: { width: '17%' }, cell: (c) => <Link href={pathOf(project, 'jobs', c.row.original.id)}>{c.getValue()}</Link> }),
      column.accessor('state', { header: 'State', meta: { width: '11%' }, cell: (c) => <StateBadge state={c.getValue()} /> }),
      column.accessor((j) => j.pool ?? '', { id: 'pool', header: 'Pool', meta: { width: '9%' }, cell: (c) => c.getValue() || <span className="faint">–</span> }),
      column.accessor((j) => j.reason ?? '', { id: 'reason', header: 'Why', enableSorting: false, meta: { width: '29%' }, cell: (c) => <Reason project={project} job={c.row.original} /> }),
      column.accessor((j) => j.model ?? '', { id: 'model', header: 'Model', meta: { width: '11%' }, cell: (c) => c.getValue() || <span className="faint">–</span> }),
      column.accessor('submitted_at', { header: 'Submitted', meta: { width: '11%' }, cell: (c) => <Time at={c.getValue()} relative /> }),
      column.accessor((j) => (j.started_at ? (j.ended_at ? Date.parse(j.ended_at) : Date.now()) - Date.parse(j.started_at) : 0), {
        id: 'took', header: 'Took', meta: { width: '12%', right: true }, cell: (c) => <Took job={c.row.original} />,
      }),
    ],
    [project],
  );
  return (
    <DataTable
      label="Jobs" list={jobs} columns={columns} rowKey={(j) => j.id} open={(j) => go(pathOf(project, 'jobs', j.id))}
      empty={<Empty title="No jobs" command={`falaj job submit --project ${project} --name train --environment sklearn train.py`}>A job trains in a sandbox, in a pinned environment, on immutable data.</Empty>}
    />
  );
}

