/** The numbers of a run's steps, kept up to date while it trains. */
import { useEffect, useState } from "preact/hooks";
import { toldLines, useLive, useRounds } from "./live";
import { route, useGet, type Answer } from "./source";
import type { Metrics, Num, Table } from "./types";

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
  return {
    ...metrics,
    ...(isStep ? add(metrics, step, values) : {}),
    evals: isEval ? add(evals, step, values) : evals,
  };
}

/** Of these metrics. What steps told of since the answer is in it; an answer that is older than what was told of while
 * it was on its way is asked for once more. */
export function useSeries(run: string, names: string[]): Answer<Metrics> {
  const { round, more } = useRounds();
  const asked = names.join(",");
  const answer = useGet<Metrics>(asked ? route(["runs", run, "metrics"], { names: asked }) : null, true, round);
  const [data, setData] = useState<Metrics | null>(null);
  useEffect(() => {
    setData(answer.data);
    if (answer.data && (answer.data.num_lines ?? 0) < toldLines(run)) more();
  }, [answer.data]);
  useLive(run, {
    missed: answer.reload,
    step: (step, values) => setData((old) => old && merge(old, step, values)),
  });
  return { ...answer, data };
}
