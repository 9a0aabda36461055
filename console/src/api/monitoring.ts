// Types of what deployments, rollouts and monitors answer. By hand, beside the
// generated ones: these read JSON whose parts are optional while it arrives.
import type { components } from '../generated/schema';

type Base = components['schemas']['serving.Deployment'];

export type Role = 'stable' | 'canary' | 'shadow';

export interface Target {
  role: Role | ''; // empty: it answers no more
  version: number;
  weight: number; // percent of the requests that it answers now
  state: string;
  reason?: string;
}

/** What a version answered since the server started; latencies in nanoseconds. */
export interface Counted extends Target {
  requests: number;
  failures: number;
  p50_ns: number;
  p99_ns: number;
}

export type Deployment = Omit<Base, 'targets' | 'before'> & { targets?: Target[] | null; before?: number[] | null };

export interface Rollout {
  id: string;
  stable: number;
  candidate: number;
  weight: number;
  spec: { metric?: string; margin?: number; alpha?: number; min_labels?: number; max_duration?: string };
  state: 'running' | 'promoted' | 'rolled_back' | 'inconclusive' | 'cancelled';
  cause?: string;
  started: string;
  started_at?: string; // on the clock of the records
  ended?: string;
  reason?: string;
  evidence?: unknown;
}

export interface Act {
  id: string;
  kind: 'retrain' | 'canary' | 'promote' | 'rollback';
  cause: string;
  at: string;
  made: string;
  outcome: 'claimed' | 'done' | 'failed' | 'skipped';
  reason?: string;
  evidence?: unknown;
  result?: string;
}

export interface Decision {
  outcome: 'continue' | 'promote' | 'rollback' | 'hold';
  reason: string;
  comparable: boolean;
  difference: number;
  low: number;
  high: number;
  alpha: number;
  margin: number;
  p: number;
  srm: number;
  guardrail?: string;
}

/** What is known of a rollout's difference after so many labels. */
export interface Point {
  labels: number;
  at?: string;
  difference: number;
  low: number;
  high: number;
}

export interface Arm {
  version: number;
  share: number;
  assigned: number;
  requests: number;
  errors: number;
  latency_p99?: number; // nanoseconds
  loss?: { n: number; mean: number; m2?: number };
}

/** How the newest rollout goes, or went. */
export interface Progress {
  rollout: string;
  stable: Arm;
  candidate: Arm;
  decision: Decision;
  concluded: boolean;
  trajectory: Point[] | null;
  labels: number;
  newest?: string; // of the deployment's newest record
}

export interface Automation {
  on: boolean;
  reason?: string;
}

export interface Status {
  versions: Counted[] | null;
  since: string;
  rollout?: Rollout;
  history: Rollout[] | null;
  acts: Act[] | null;
  automation: Automation;
  lost: number;
  unshadowed: number;
}

export interface Monitor {
  name: string;
  deployment: string;
  state: 'ok' | 'drifted' | 'degraded' | 'waiting';
  reason?: string;
  since?: string | null;
  version?: number;
  watermark?: string | null;
  windows: number;
  late: number;
  skewed: number;
  problem?: string;
  spec: { drift?: { alpha?: number; threshold?: number; share?: number; method?: string }; window?: { every?: string; rows?: number } };
}

export interface Feature {
  name: string;
  kind: string;
  method?: string;
  statistic: number | null;
  p_value: number | null;
  threshold: number | null;
  drifted: boolean;
  rows: number;
  missing: number;
  baseline_missing: number;
  mean: number | null;
  baseline_mean: number | null;
  note?: string;
}

export interface Metric {
  name: string;
  value: number | null;
  low: number | null;
  high: number | null;
  estimate: boolean;
  limit?: number | null;
  breached?: boolean;
}

export interface Window {
  id: string;
  version: number;
  replay: boolean;
  from: string;
  to: string;
  closed_at: string;
  requests: number;
  rows: number;
  failed: number;
  late: number;
  judged: boolean;
  drifted: boolean;
  share: number;
  note?: string;
  features: Feature[] | null;
  score?: Feature | null;
  performance: { labelled: number; rows: number; state: string; degraded: boolean; metrics: Metric[] | null };
  latency: { p50_ms: number | null; p99_ms: number | null };
}

/** A column's values in short: `edges` has one more entry than `shares`. */
export interface Summary {
  kind?: string;
  rows?: number;
  missing?: number;
  distinct?: number;
  min?: number;
  max?: number;
  mean?: number;
  std?: number;
  histogram?: { edges: number[]; shares: number[] } | null;
  categories?: { text: string; count: number }[] | null;
  other?: number;
}

export interface NamedColumn {
  name: string;
  summary: Summary;
}

export interface Baseline {
  version: number;
  source: string;
  ref?: string;
  rows: number;
  note?: string;
  columns: NamedColumn[] | null;
  score?: NamedColumn | null;
}

export type Summaries = Window & { columns: NamedColumn[] | null; scores?: NamedColumn | null };
