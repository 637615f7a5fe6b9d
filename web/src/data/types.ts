/** What the server answers, field by field. null: not known, or not recorded. Times are unix seconds, logs natural. */
export type RunState = "running" | "finished" | "interrupted" | "unknown";
export type Num = number | null;

export interface RunRow {
  id: string;
  name: string;
  path: string;
  state: RunState;
  num_steps: Num;
  updated_at: Num;
  reward: Num;
  success: Num;
}

export interface Model {
  name: string;
  label: string;
  /** Its address, if it is none of the run's own. */
  served_by?: string;
}

export interface Run {
  id: string;
  name: string;
  state: RunState;
  /** How far it was when it was read, as ids of events say it. */
  position: string;
  config: unknown;
  summary: unknown;
  metrics: string[];
  steps: number[];
  /** Steps after which held-out rows were played. */
  evaluations: number[];
  damage: string[];
  algorithm: { name: string; formula: string[] | null } | null;
  checkpoints: { step: number; whole: boolean }[];
  models: Model[];
  can_sample: boolean;
  /** Why there are no more models. */
  models_note?: string;
  /** Of a report: how many branches it holds. */
  num_branches?: number;
}

export interface Table {
  steps: number[];
  series: Record<string, Num[]>;
}
export interface Metrics extends Table {
  evals: Table | null;
  /** Of the file that it was read from, at least. */
  num_lines?: number;
}

export interface Finding {
  kind: string;
  severity: "info" | "warn" | "bad";
  text: string;
  evidence: string | null;
}

export interface LedgerLine {
  sampled: number;
  trained: number;
  masked: Record<string, number>;
}
export interface Ledger extends LedgerLine {
  balanced: boolean;
  by_step: (LedgerLine & { step: number })[];
}

export interface EpisodeRow {
  id: string;
  num: number;
  step: Num;
  group_id: string | null;
  task_id: string | null;
  is_eval: boolean;
  outcome: string;
  reason: string | null;
  reward: Num;
  num_turns: number;
  num_tokens: number;
  num_forks: Num;
  finished_at: Num;
  agent: string | null;
  /** Names of the tools that were called, as `agent` with commas between them. */
  tools: string | null;
  advantage_mean: Num;
  staleness_max: Num;
  first_text: string | null;
}

export interface EpisodesPage {
  total: number;
  /** Episodes that filters do not find yet, because the server has not read them. */
  num_unread?: number;
  /** Episodes of the run that the server knew, whatever was asked for. */
  num_listed: number;
  histogram: { edges: number[]; counts: number[] };
  outcomes: Record<string, number>;
  agents: string[];
  tools: string[];
  episodes: EpisodeRow[];
}

export interface GroupRow {
  id: string;
  step: Num;
  task_id: string | null;
  num_members: number;
  reward_mean: Num;
  reward_std: Num;
  flat: boolean;
  /** Ids of its members, and of each how it ended and its reward. */
  episodes: string[];
  outcomes: string[];
  rewards: Num[];
}

export interface ToolCall {
  id?: string | null;
  name: string;
  arguments: string;
}
export interface Message {
  role: string;
  content: string | null;
  reasoning?: string | null;
  tool_calls?: ToolCall[] | null;
  tool_call_id?: string | null;
  name?: string | null;
}

export interface Turn {
  id: string;
  number: number;
  agent: string | null;
  prefix: string | null;
  follows: string | null;
  fork: { reason: string; detail: string | null } | null;
  started_at: Num;
  first_token_at: Num;
  ended_at: Num;
  until_first_s: Num;
  /** Of the time until the first token; null where the engine does not say when it began with the prompt. */
  wait_s: Num;
  prefill_s: Num;
  decode_s: Num;
  reward: Num;
  return: Num;
  advantage: Num;
  mask: string | null;
  version_min: Num;
  version_max: Num;
  num_prompt_tokens: Num;
  num_sampled_tokens: Num;
  num_cached_tokens?: Num;
  temperature?: Num;
  stop: string | null;
  messages: Message[];
  reply: Message | null;
  tools: (string | { name: string })[] | null;
}

export interface Span {
  kind: "queue" | "first_token" | "prefill" | "decode" | "model" | "tool" | "agent";
  turn: string | null;
  label: string | null;
  start_s: number;
  end_s: number;
  error?: string | null;
}

export interface Episode extends EpisodeRow {
  metrics: Record<string, number> | null;
  metadata: Record<string, unknown> | null;
  siblings: { id: string; reward: Num; outcome: string }[];
  /** All attempts that have its id, in order. */
  attempts: { id: string; reward: Num; outcome: string }[];
  turns: Turn[];
  spans: Span[] | null;
}

export interface Token {
  i: number;
  id: number;
  text: string | null;
  kind: "prompt" | "sampled";
  logprob?: Num;
  trained_logprob?: Num;
  ratio?: Num;
  clipped?: boolean | null;
  advantage?: Num;
  weight?: Num;
  loss?: Num;
  mask?: string | null;
  version?: Num;
  entropy?: Num;
  kept?: Num;
  factor?: Num;
  old_logprob?: Num;
  reference_logprob?: Num;
  kl_reference?: Num;
}
export interface TokensPage {
  total: number;
  prompt_total: number;
  tokens: Token[];
}
export interface Alternatives {
  alternatives?: { id: number; text: string | null; logprob: Num }[];
  unavailable?: string;
}

export interface StepPage {
  step: number;
  metrics: Record<string, Num>;
  loss: Num;
  loss_of_tokens: Num;
  num_trained: Num;
  groups: GroupRow[];
}

export interface ComparedRun {
  id?: string;
  name?: string;
  /** Of its metrics. */
  step?: Num;
  /** Of the evaluation in the pairs, which may be an earlier one. */
  evaluated_step?: Num;
  [key: string]: unknown;
}
export interface Comparison {
  a: ComparedRun;
  b: ComparedRun;
  metrics: { name: string; a: Num; b: Num }[];
  paired: null | {
    rows: number;
    mean_a: number;
    mean_b: number;
    difference: number;
    interval: [number, number];
    tasks: { task_id: string; a: number; b: number }[];
  };
  why_not?: string | null;
  /** What the pairs leave out, in sentences. */
  notes?: string[];
}

export interface Sample {
  text: string;
  reward: Num;
  /** With what else each could have been. null: not asked for, or still coming. */
  tokens: (Token & Alternatives)[] | null;
  stop?: string;
  reply?: Message;
  chosen?: boolean;
}
export interface Branch {
  id: string;
  state: string;
  error: string | null;
  created_at: Num;
  from: { episode: string; turn: string };
  model: string;
  /** The address of a model that is served elsewhere. */
  served_by?: string | null;
  edit: { message_index: number; content: string } | null;
  samples: Sample[];
}

export interface Failure {
  outcome: string;
  count: number;
  reason: string | null;
  /** The episode that ended so first. */
  first: string;
  trace: string | null;
}

export interface FailuresFound {
  failures: Failure[];
  /** Episodes whose reasons the server has not read yet. */
  num_unread: number;
}

export interface Fork {
  reason: string;
  num_turns: number;
  example: { episode: string; number: number; seen: string; shown: string } | null;
}
