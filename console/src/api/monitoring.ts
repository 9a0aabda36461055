// Types of what deployments, rollouts and monitors answer: the generated ones by
// short names, and what the API's description leaves open.
import type { components } from '../generated/schema';

type Schemas = components['schemas'];

export type Deployment = Schemas['serving.Deployment'];
export type Target = Schemas['serving.Target']; // its role is empty when it answers no more
export type Counted = Schemas['serving.Counted'];
export type Status = Schemas['serving.Status'];
export type Rollout = Schemas['serving.Rollout'];
export type Act = Schemas['serving.AutoAction'];
export type Progress = Schemas['label.Progress'];
export type Point = Schemas['label.Point'];
export type Decision = Schemas['rollout.Decision'];
export type Monitor = Schemas['monitoring.Monitor'];
export type Window = Schemas['monitoring.Window'];
export type Feature = Schemas['monitoring.Feature'];
export type Metric = Schemas['monitoring.Metric'];

/** A column's values in short: `edges` has one more entry than `shares`. */
export interface Summary {
  kind?: string;
  rows?: number;
  missing?: number;
  histogram?: { edges: number[]; shares: number[] } | null;
  categories?: { text: string; count: number }[] | null;
}

export type NamedColumn = Omit<Schemas['monitoring.NamedColumn'], 'summary'> & { summary: Summary };

type Columns<T, Score extends string> = Omit<T, 'columns' | Score> & { columns: NamedColumn[] | null } & { [s in Score]?: NamedColumn };

export type Baseline = Columns<Schemas['monitoring.Baseline'], 'score'>;
export type Summaries = Columns<Schemas['monitoring.Summaries'], 'scores'>;
