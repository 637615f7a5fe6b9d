/** The numbers of a run's steps, kept up to date while it trains. */
import { useEffect, useState } from "preact/hooks";
import { useLive } from "./live";
import { get, route } from "./source";
import type { Metrics, Num, Table } from "./types";

export interface Series {
  data: Metrics | null;
  error: string | null;
}

/** The evaluation that belongs beside a metric of training, if it has one. */
export const evaluationOf = (name: string) =>
  name.startsWith("rollout/") ? "eval/" + name.slice("rollout/".length) : null;

function add(table: Table, step: number, metrics: Record<string, Num>): Table {
  const at = table.steps.indexOf(step);
  const series = Object.fromEntries(
    Object.entries(table.series).map(([name, values]) => {
      const value = metrics[name] ?? null;
      return [name, at < 0 ? [...values, value] : values.map((old, index) => (index === at ? (value ?? old) : old))];
    }),
  );
  return { steps: at < 0 ? [...table.steps, step] : table.steps, series };
}

function merge(metrics: Metrics, step: number, values: Record<string, Num>): Metrics {
  const evals = metrics.evals ?? { steps: [], series: {} };
  const isEval = Object.keys(values).some((name) => name.startsWith("eval/"));
  const isStep = Object.keys(values).some((name) => !name.startsWith("eval/"));
  return { ...(isStep ? add(metrics, step, values) : metrics), evals: isEval ? add(evals, step, values) : evals };
}

export function useSeries(run: string, names: string[]): Series {
  const [state, setState] = useState<Series>({ data: null, error: null });
  const [round, setRound] = useState(0);
  const asked = names.join(",");
  useEffect(() => {
    if (!asked) return;
    const abort = new AbortController();
    get<Metrics>(route(["runs", run, "metrics"], { names: asked }), abort.signal).then(
      (data) => setState({ data, error: null }),
      (error: Error) => abort.signal.aborted || setState({ data: null, error: error.message }),
    );
    return () => abort.abort();
  }, [run, asked, round]);
  useLive(run, {
    missed: () => setRound((number) => number + 1),
    step: (step, values) => setState((old) => (old.data ? { ...old, data: merge(old.data, step, values) } : old)),
  });
  return state;
}
