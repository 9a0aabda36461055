import { createColumnHelper } from '@tanstack/react-table';
import { useMemo } from 'react';
import { Link, useLocation } from 'wouter';
import type { AuditEntry, Dataset, FeatureService, FeatureView, Model } from '../api/client';
import { useDatasets, useFeatureServices, useFeatureViews, useList, useModels } from '../api/queries';
import { lineageOf, pathOf } from '../frame/places';
import { DataTable } from '../parts/DataTable';
import { count } from '../parts/format';
import { Empty, StateBadge, Tag } from '../parts/State';
import { Time } from '../parts/Time';

const dataset = createColumnHelper<Dataset>();

export function DatasetsPage({ project }: { project: string }) {
  const [, go] = useLocation();
  const list = useDatasets(project);
  const columns = useMemo(
    () => [
      dataset.accessor('name', { header: 'Name', meta: { width: '34%' }, cell: (c) => <Link href={pathOf(project, 'datasets', c.getValue())}>{c.getValue()}</Link> }),
      dataset.accessor('latest', { header: 'Newest version', meta: { width: '16%', right: true }, cell: (c) => (c.getValue() ? `@${c.getValue()}` : '–') }),
      dataset.accessor('accepted', { header: 'Newest accepted', meta: { width: '16%', right: true }, cell: (c) => (c.getValue() ? `@${c.getValue()}` : '–') }),
      dataset.accessor('owner', { header: 'Owner', meta: { width: '18%' } }),
      dataset.accessor('updated_at', { header: 'Changed', meta: { width: '16%' }, cell: (c) => <Time at={c.getValue()} relative /> }),
    ],
    [project],
  );
  return <DataTable label="Datasets" list={list} columns={columns} rowKey={(d) => d.id} open={(d) => go(pathOf(project, 'datasets', d.name))} empty={<Empty title="There is no dataset" command={`falaj dataset import NAME FILE.parquet --project ${project}`}>A dataset's versions are immutable: each has a schema, statistics and a digest.</Empty>} />;
}

const view = createColumnHelper<FeatureView>();
const service = createColumnHelper<FeatureService>();

export function FeaturesPage({ project }: { project: string }) {
  const [, go] = useLocation();
  const list = useFeatureViews(project);
  const services = useFeatureServices(project);
  const columns = useMemo(
    () => [
      view.accessor('name', { header: 'View', meta: { width: '20%' }, cell: (c) => <Link href={pathOf(project, 'features', c.getValue())}>{c.getValue()}</Link> }),
      view.accessor('version', { header: 'Version', meta: { width: '9%', right: true }, cell: (c) => `@${c.getValue()}` }),
      view.accessor((v) => v.entities?.join(', ') ?? '', { id: 'entities', header: 'Entities', meta: { width: '18%' } }),
      view.accessor((v) => v.features?.map((f) => f.name).join(', ') ?? '', { id: 'features', header: 'Features', meta: { width: '31%' }, cell: (c) => <span title={c.getValue()}>{c.getValue()}</span> }),
      view.accessor((v) => v.ttl ?? '', { id: 'ttl', header: 'Valid for', meta: { width: '9%' } }),
      view.accessor('created_at', { header: 'Made', meta: { width: '13%' }, cell: (c) => <Time at={c.getValue()} relative /> }),
    ],
    [project],
  );
  const served = useMemo(
    () => [
      service.accessor('name', { header: 'Service', meta: { width: '20%' }, cell: (c) => <Link href={pathOf(project, 'services', c.getValue())}>{c.getValue()}</Link> }),
      service.accessor('version', { header: 'Version', meta: { width: '9%', right: true }, cell: (c) => `@${c.getValue()}` }),
      service.accessor((v) => v.purpose ?? '', { id: 'purpose', header: 'Purpose', meta: { width: '18%' } }),
      service.accessor((v) => [...(v.selected ?? []), ...(v.computed ?? []).map((f) => f.name)].join(', '), { id: 'features', header: 'Features', meta: { width: '40%' }, cell: (c) => <span title={c.getValue()}>{c.getValue()}</span> }),
      service.accessor('created_at', { header: 'Made', meta: { width: '13%' }, cell: (c) => <Time at={c.getValue()} relative /> }),
    ],
    [project],
  );
  return (
    <div className="lists">
      <DataTable label="Feature views" list={list} columns={columns} rowKey={(v) => v.name} open={(v) => go(pathOf(project, 'features', v.name))} empty={<Empty title="There is no feature view" command="falaj apply -f features.yaml">A view turns a dataset into features that training and serving read alike.</Empty>} />
      {list.rows.length > 0 && (
        <>
          <h2>Feature services</h2>
          <DataTable label="Feature services" list={services} columns={served} rowKey={(v) => v.name} open={(v) => go(pathOf(project, 'services', v.name))} empty={<Empty title="There is no feature service">A service names the features of a model, by exact versions of their views.</Empty>} />
        </>
      )}
    </div>
  );
}

const model = createColumnHelper<Model>();

export function ModelsPage({ project }: { project: string }) {
  const list = useModels(project);
  const columns = useMemo(
    () => [
      model.accessor('name', { header: 'Name', meta: { width: '24%' }, cell: (c) => <Link href={lineageOf(project, 'model', c.getValue())} title="Lineage of its newest version">{c.getValue()}</Link> }),
      model.accessor('latest_version', { header: 'Newest version', meta: { width: '14%', right: true }, cell: (c) => `v${c.getValue()}` }),
      model.accessor((m) => m.aliases?.join(' ') ?? '', { id: 'aliases', header: 'Aliases', meta: { width: '22%' }, cell: (c) => c.row.original.aliases?.map((a) => <Tag key={a}>{a.replace('=', ' → v')}</Tag>) }),
      model.accessor((m) => m.description ?? '', { id: 'description', header: 'Description', enableSorting: false, meta: { width: '26%' } }),
      model.accessor('created_at', { header: 'Made', meta: { width: '14%' }, cell: (c) => <Time at={c.getValue()} relative /> }),
    ],
    [project],
  );
  return <DataTable label="Models" list={list} columns={columns} rowKey={(m) => m.name} empty={<Empty title="No models">A job whose manifest says <code>register: NAME</code> registers what it leaves in model/. MLflow clients can register, too.</Empty>} />;
}

/** Who did it, short; the whole is the title. */
export function Who({ entry: e }: { entry: AuditEntry }) {
  const name = (e.actor.name || e.actor.id).replace(/^attempt (att_\w+) .*$/, '$1');
  return <span title={e.actor_name || e.actor.id}>{e.actor.kind === 'user' ? name : `${e.actor.kind} ${name}`}</span>;
}

const entry = createColumnHelper<AuditEntry>();

export function AuditPage({ project }: { project: string }) {
  const list = useList<AuditEntry>(['audit', project, 'list'], `/api/v1/audit?project=${encodeURIComponent(project)}`, { every: 10_000 });
  const columns = useMemo(
    () => [
      entry.accessor('index', { header: 'Number', meta: { width: '9%', right: true }, cell: (c) => count(c.getValue()) }),
      entry.accessor('time', { header: 'Time', meta: { width: '16%' }, cell: (c) => <Time at={c.getValue()} form="second" /> }),
      entry.accessor((e) => e.actor_name || e.actor.id, { id: 'actor', header: 'Who', meta: { width: '16%' }, cell: (c) => <Who entry={c.row.original} /> }),
      entry.accessor('action', { header: 'Action', meta: { width: '18%' } }),
      entry.accessor((e) => e.object ?? '', { id: 'object', header: 'Object', meta: { width: '27%' }, cell: (c) => <span title={c.getValue()}>{c.getValue()}</span> }),
      entry.accessor('outcome', { header: 'Outcome', meta: { width: '14%' }, cell: (c) => <StateBadge state={c.getValue()} title={c.row.original.reason} /> }),
    ],
    [],
  );
  return <DataTable label="Audit log" list={list} columns={columns} rowKey={(e) => String(e.index)} empty={<Empty title="No audit entries">Each change and each read of confidential data is recorded here.</Empty>} />;
}
