// What the pages ask. Keys begin with the noun and the project, so that an event
// can make them stale.
import { keepPreviousData, useInfiniteQuery, useQuery } from '@tanstack/react-query';
import { useEffect, useMemo } from 'react';
import { get, inProject, Problem, type Dataset, type DatasetProfile, type Definition, type FeatureLineage, type FeatureService, type FeatureView, type Figure, type Freshness, type Gateway, type Graph, type Hit, type Job, type JobDetail, type Model, type Optimization, type Page, type Profile, type Project, type Run, type Sweep, type SweepSummary, type Top, type Trial, type Version } from './client';
import type { Baseline, Deployment, Monitor, Progress, Status, Window } from './monitoring';

/** The most objects that a table holds; it says so when there are more. */
export const most = 20_000;
const pageSize = 1000;

export interface List<T> {
  rows: T[];
  loading: boolean; // of the first page
  more: boolean; // further pages are on their way
  cut: boolean; // there are more than `most`
  error: Error | null;
  again: () => void;
}

/** A whole list, page after page; the first is shown at once. */
export function useList<T>(key: readonly string[], path: string, options: { every?: number; enabled?: boolean } = {}): List<T> {
  const q = useInfiniteQuery({
    queryKey: key,
    initialPageParam: '',
    queryFn: ({ pageParam, signal }) =>
      get<Page<T>>(`${path}${path.includes('?') ? '&' : '?'}page_size=${pageSize}${pageParam && `&page_token=${encodeURIComponent(pageParam)}`}`, signal),
    getNextPageParam: (last) => last.next_page_token || undefined,
    enabled: options.enabled ?? true,
    refetchInterval: (query) => ((query.state.data?.pages.length ?? 0) > 2 ? false : (options.every ?? 30_000)),
  });
  const rows = useMemo(() => q.data?.pages.flatMap((p) => p.items ?? []) ?? [], [q.data]);
  const full = rows.length >= most;
  const { hasNextPage, isFetching, isError, fetchNextPage } = q;
  useEffect(() => {
    if (hasNextPage && !isFetching && !isError && !full) void fetchNextPage();
  }, [hasNextPage, isFetching, isError, full, fetchNextPage]);
  return {
    rows,
    loading: q.isPending && (options.enabled ?? true),
    more: q.hasNextPage && !full,
    cut: q.hasNextPage && full,
    error: rows.length > 0 ? null : q.error,
    again: () => void q.refetch(),
  };
}

export const useProjects = () => useList<Project>(['projects', ''], '/api/v1/projects');
export const useJobs = (p: string) => useList<Job>(['job', p, 'list'], inProject(p, 'jobs'));
/** Runs for which a condition in MLflow's grammar holds. */
export const useRuns = (p: string, filter: string) => useList<Run>(['run', p, 'list', filter], inProject(p, 'runs') + (filter && `?filter=${encodeURIComponent(filter)}`));
/** Runs with all that they measured last. */
export const useRunsNamed = (p: string, ids: readonly string[]) =>
  useQuery({ queryKey: ['run', p, 'named', ...ids], queryFn: ({ signal }) => Promise.all(ids.map((id) => get<Run>(inProject(p, 'runs', id), signal))), refetchInterval: 10_000, retry: false });
export const useRunFigures = (p: string, ids: readonly string[], running: boolean) =>
  useQuery({ queryKey: ['run', p, 'figures', ...ids], queryFn: ({ signal }) => get<Page<Figure>>(`${inProject(p, 'runs', 'figures')}?${ids.map((id) => `run=${encodeURIComponent(id)}`).join('&')}`, signal), refetchInterval: running ? 10_000 : false, retry: false });
export const useSweeps = (p: string) => useList<Sweep>(['sweep', p, 'list'], inProject(p, 'sweeps'), { every: 10_000 });
export const useTrials = (p: string, name: string, running: boolean) =>
  useList<Trial>(['sweep', p, name, 'trials'], inProject(p, 'sweeps', name, 'trials'), { every: running ? 5000 : 60_000 });
export const useDatasets = (p: string) => useList<Dataset>(['dataset', p, 'list'], inProject(p, 'datasets'));
export const useFeatureViews = (p: string) => useList<FeatureView>(['feature', p, 'list'], inProject(p, 'feature-views'));
export const useFeatureServices = (p: string) => useList<FeatureService>(['feature', p, 'services'], inProject(p, 'feature-services'));
export const useModels = (p: string) => useList<Model>(['model', p, 'list'], inProject(p, 'models'));
export const useDeployments = (p: string) => useList<Deployment>(['deployment', p, 'list'], inProject(p, 'deployments'), { every: 10_000 });
export const useMonitors = (p: string) => useList<Monitor>(['monitor', p, 'list'], inProject(p, 'monitors'), { every: 10_000 });

export const useGateways = (p: string) => useList<Gateway>(['gateway', p, 'list'], inProject(p, 'gateways'), { every: 10_000 });

/** What has all the words; nothing is asked for fewer than two letters. */
export const useSearch = (p: string, q: string) =>
  useQuery({ queryKey: ['search', p, q], queryFn: ({ signal }) => get<Page<Hit>>(`${inProject(p, 'search')}?page_size=50&q=${encodeURIComponent(q)}`, signal), enabled: q.length > 1, staleTime: 10_000, retry: false });

export type Way = 'both' | 'up' | 'down';

/** What is around something, as far as the caller may see it. */
export const useLineage = (p: string, kind: string, name: string, way: Way, namespace = '', enabled = true) =>
  useQuery({
    queryKey: ['lineage', p, kind, name, namespace, way],
    queryFn: ({ signal }) => {
      const q: Record<string, string> = kind === 'dataset' && !namespace ? { dataset: name, direction: way } : { kind, name, namespace, direction: way };
      return get<Graph>(`${inProject(p, 'lineage')}?${new URLSearchParams(q)}`, signal);
    },
    enabled,
    staleTime: 10_000,
    placeholderData: keepPreviousData,
  });

const featurePaths = { feature_view: 'feature-views', feature_service: 'feature-services' } as const;

export const featureView = (p: string, ref: string) => ({ queryKey: ['feature', p, ref], queryFn: ({ signal }: { signal: AbortSignal }) => get<FeatureView>(inProject(p, 'feature-views', ref), signal) });
export const useFeatureView = (p: string, ref: string) => useQuery(featureView(p, ref));

export const useFeatureService = (p: string, ref: string) =>
  useQuery({ queryKey: ['feature', p, 'service', ref], queryFn: ({ signal }) => get<FeatureService>(inProject(p, 'feature-services', ref), signal) });

/** The newest versions of a definition with their aliases, newest first. */
export const useDefinitions = (p: string, kind: keyof typeof featurePaths, name: string) =>
  useQuery({ queryKey: ['feature', p, kind, name, 'versions'], queryFn: ({ signal }) => get<Page<Definition>>(inProject(p, featurePaths[kind], name, 'versions') + '?page_size=30', signal) });

export const freshness = (p: string, ref: string) => ({
  queryKey: ['feature', p, ref, 'freshness'],
  queryFn: ({ signal }: { signal: AbortSignal }) => get<Freshness>(inProject(p, 'feature-views', ref, 'freshness'), signal),
  refetchInterval: 10_000,
});
export const useFreshness = (p: string, ref: string) => useQuery(freshness(p, ref));

/** The runs and training sets of a view, newest first. */
export const useViewLineage = (p: string, ref: string) =>
  useQuery({ queryKey: ['feature', p, ref, 'lineage'], queryFn: ({ signal }) => get<FeatureLineage>(inProject(p, 'feature-views', ref, 'lineage'), signal) });

/** The newest versions of a dataset, newest first. */
export const useVersions = (p: string, name: string, enabled = true) =>
  useQuery({ queryKey: ['dataset', p, name, 'versions'], queryFn: ({ signal }) => get<Page<Version>>(inProject(p, 'datasets', name, 'versions') + '?page_size=30', signal), enabled });

export const useVersion = (p: string, name: string, number: number | undefined) =>
  useQuery({
    queryKey: ['dataset', p, name, 'version', String(number)],
    queryFn: ({ signal }) => get<Version>(inProject(p, 'datasets', `${name}@${number}`, 'version'), signal),
    enabled: !!number,
  });

/** What a version's columns look like. It never changes, and of classified data each read is journaled: it is asked once. */
export const useDatasetProfile = (p: string, ref: string, enabled: boolean) =>
  useQuery({ queryKey: ['profile', p, ref], queryFn: ({ signal }) => get<DatasetProfile>(inProject(p, 'datasets', ref, 'profile'), signal), enabled, staleTime: Infinity, retry: false });

export const useJob = (p: string, id: string) =>
  useQuery({
    queryKey: ['job', p, id],
    queryFn: ({ signal }) => get<JobDetail>(inProject(p, 'jobs', id) + '?view=full', signal),
    refetchInterval: (q) => (q.state.data && ended(q.state.data.state) ? false : 5000),
  });

export const useSweep = (p: string, name: string) =>
  useQuery({
    queryKey: ['sweep', p, name],
    queryFn: ({ signal }) => get<SweepSummary>(inProject(p, 'sweeps', name), signal),
    refetchInterval: (q) => (q.state.data && underWay(q.state.data.state) ? 5000 : false),
  });

/** A study of Optuna's may always go on. */
export const underWay = (state: string) => state === 'running' || state === 'client';

/** Pictures of a sweep; drawing them takes the server a moment. */
export const useFigures = (p: string, name: string, running: boolean) =>
  useQuery({ queryKey: ['sweep', p, name, 'figures'], queryFn: ({ signal }) => get<Page<Figure>>(inProject(p, 'sweeps', name, 'figures'), signal), refetchInterval: running ? 30_000 : false, retry: false });

/** What a job that optimised a model measured. */
export const useOptimization = (p: string, id: string, enabled: boolean) =>
  useQuery({
    queryKey: ['job', p, id, 'optimization'],
    queryFn: ({ signal }) => get<Optimization>(inProject(p, 'jobs', id, 'optimization'), signal),
    enabled,
    retry: false,
    staleTime: Infinity,
  });

/** Why a job that waits waits. */
export const useWhy = (p: string, id: string, enabled: boolean) =>
  useQuery({
    queryKey: ['job', p, id, 'why'],
    queryFn: ({ signal }) => get<{ reasons: string[] | null }>(inProject(p, 'jobs', id, 'why'), signal),
    enabled,
    refetchInterval: 10_000,
  });

/** How each worker of a job's newest attempt is. */
export const useTop = (p: string, job: Job) =>
  useQuery({
    queryKey: ['job', p, job.id, 'top', job.state],
    queryFn: ({ signal }) => get<Top>(inProject(p, 'jobs', job.id, 'top'), signal),
    placeholderData: keepPreviousData,
    refetchInterval: ended(job.state) ? false : 5000,
  });

/** What was seen of a job's workers, newest first. */
export const useProfiles = (p: string, id: string) =>
  useQuery({ queryKey: ['job', p, id, 'profiles'], queryFn: async ({ signal }) => ((await get<Page<Profile>>(inProject(p, 'jobs', id, 'profiles'), signal)).items ?? []).toReversed() });

export const useDeployment = (p: string, name: string) =>
  useQuery({ queryKey: ['deployment', p, name], queryFn: ({ signal }) => get<Deployment>(inProject(p, 'deployments', name), signal) });

export const useStatus = (p: string, name: string) =>
  useQuery({
    queryKey: ['deployment', p, name, 'status'],
    queryFn: ({ signal }) => get<Status>(inProject(p, 'deployments', name, 'status'), signal),
    refetchInterval: 5000,
  });

/** How the newest rollout goes; null when none was judged. */
export const useProgress = (p: string, name: string, rollout: string) =>
  useQuery({
    queryKey: ['deployment', p, name, 'rollout', rollout],
    queryFn: ({ signal }) => orNull(get<Progress>(inProject(p, 'deployments', name, 'rollout'), signal)),
    enabled: rollout !== '',
    refetchInterval: 5000,
  });

/** The monitor of a deployment, null when there is none. */
export const useMonitor = (p: string, name: string, enabled = true) =>
  useQuery({ queryKey: ['monitor', p, name], queryFn: ({ signal }) => orNull(get<Monitor>(inProject(p, 'monitors', name), signal)), enabled, refetchInterval: 10_000 });

/** The newest windows of a monitor, oldest first. */
export const useWindows = (p: string, name: string, enabled: boolean) =>
  useQuery({
    queryKey: ['monitor', p, name, 'windows'],
    queryFn: async ({ signal }) => ((await get<Page<Window>>(inProject(p, 'monitors', name, 'windows') + '?page_size=120', signal)).items ?? []).toReversed(),
    enabled,
    placeholderData: keepPreviousData, // no flicker while new windows come
    refetchInterval: 10_000,
  });

export const useBaseline = (p: string, name: string, version: number) =>
  useQuery({
    queryKey: ['monitor', p, name, 'baseline', String(version)],
    queryFn: ({ signal }) => orNull(get<Baseline>(inProject(p, 'monitors', name, 'baseline') + `?version=${version}`, signal)),
    enabled: version > 0,
    staleTime: 60_000,
  });

async function orNull<T>(asked: Promise<T>): Promise<T | null> {
  try {
    return await asked;
  } catch (e) {
    if (e instanceof Problem && e.status === 404) return null;
    throw e;
  }
}

export const ended = (state: string) => ['succeeded', 'failed', 'cancelled'].includes(state);
