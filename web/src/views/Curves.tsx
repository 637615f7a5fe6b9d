/** The charts of the overview: which metrics, how smooth, and which other runs beside this one. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Missing } from "../parts/Basics";
import { Chart, type Curve } from "../parts/Chart";
import { series as palette } from "../colour";
import { evaluationOf, useSeries } from "../data/series";
import { get, isReport, route, useGet } from "../data/source";
import type { Metrics, Run, RunRow } from "../data/types";
import { useKeys } from "../keys";
import { go, links, parse, setQuery, type Query } from "../router";

const preferred = [
  "rollout/reward",
  "rollout/success",
  "train/entropy",
  "train/kl",
  "train/logprob_gap_mean",
  "train/grad_norm",
  "rollout/tokens",
  "staleness/mean_versions",
  "rollout/tokens_per_s",
  "train/nll",
  "train/loss",
];
const DEFAULT_CHARTS = 9;
const DEFAULT_SMOOTHING = 0.6;
const OTHERS_MS = 15_000; // between two looks at runs beside this one, which may be training too

const list = (text: string | undefined) => (text ? text.split(",").filter(Boolean) : []);

/** The metrics of other runs, by id; a sentence for one that cannot be read. */
function useOthers(ids: string[], names: string[]): Record<string, Metrics | string> {
  const [all, setAll] = useState<Record<string, Metrics | string>>({});
  const [round, setRound] = useState(0);
  const asked = names.join(",");
  useEffect(() => {
    const abort = new AbortController();
    const keep = (id: string) => (data: Metrics | string) =>
      setAll((old) => (abort.signal.aborted ? old : { ...old, [id]: data }));
    for (const id of ids)
      get<Metrics>(route(["runs", id, "metrics"], { names: asked }), abort.signal).then(keep(id), (error: Error) =>
        keep(id)(error.message),
      );
    const timer = setTimeout(() => setRound((number) => number + 1), ids.length ? OTHERS_MS : 2 ** 31 - 1);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [ids.join(","), asked, round]);
  return all;
}

function curves(
  metric: string,
  sources: { label: string; colour: string; data: Metrics | undefined | null }[],
  evaluates: boolean,
): Curve[] {
  return sources.flatMap(({ label, colour, data }) => {
    if (!data) return [];
    const evals = evaluates ? data.evals : null;
    const twin = metric.startsWith("eval/") ? metric : evaluationOf(metric);
    const points = twin && evals?.series[twin];
    const own: Curve[] = metric.startsWith("eval/")
      ? []
      : [{ label, colour, steps: data.steps, values: data.series[metric] ?? [], kind: "line" }];
    return points
      ? [
          ...own,
          {
            label: `${label}, evaluation`,
            colour: colour === "s1" ? "s2" : colour,
            steps: evals!.steps,
            values: points,
            kind: "points",
          },
        ]
      : own;
  });
}

export function Curves({ run, query }: { run: Run; query: Query }) {
  const chosen = list(query.m);
  const metrics = chosen.length
    ? chosen
    : preferred.filter((name) => run.metrics.includes(name)).slice(0, DEFAULT_CHARTS);
  const smoothing = query.smooth === undefined ? DEFAULT_SMOOTHING : Number(query.smooth);
  const others = list(query.with);
  const names = useMemo(() => {
    const twins = metrics
      .map(evaluationOf)
      .filter((name): name is string => name !== null && run.metrics.includes(name));
    return [...new Set([...metrics, ...twins])];
  }, [metrics.join(","), run]);
  const own = useSeries(run.id, names);
  const beside = useOthers(others, names);
  const listed = useGet<{ runs: RunRow[] }>(isReport ? null : route(["runs"]));
  const runs = listed.data?.runs ?? [];
  const nameOf = (id: string) => runs.find((each) => each.id === id)?.name ?? id;
  const section = useRef<HTMLElement>(null);
  useEffect(() => {
    // who follows a link to curves from above them is taken there; who chooses here has them before him
    const see = () => parse(location.hash).query.m && section.current?.scrollIntoView();
    addEventListener("hashchange", see);
    return () => removeEventListener("hashchange", see);
  }, []);
  useKeys([{ key: "m", does: "add a metric", run: () => document.getElementById("metric")?.focus() }]);

  const sources = useMemo(
    () => [
      { label: run.name, colour: palette[0]!, data: own.data },
      ...others.map((id, at) => {
        const data = beside[id];
        return {
          label: nameOf(id),
          colour: palette[(at + 2) % palette.length]!,
          data: typeof data === "string" ? undefined : data,
        };
      }),
    ],
    [own.data, beside, runs, query.with],
  );
  const drawn = useMemo(() => metrics.map((metric) => curves(metric, sources, true)), [sources, metrics.join(",")]);
  const set = (all: string[]) => setQuery({ m: all.join(",") });
  return (
    <section class="curves" aria-label="Curves" ref={section}>
      <div class="controls">
        <h2>Curves</h2>
        <label>
          Add
          <select
            id="metric"
            value=""
            onChange={(event) => event.currentTarget.value && set([...metrics, event.currentTarget.value])}
          >
            <option value="">a metric …</option>
            {run.metrics
              .filter((name) => !metrics.includes(name))
              .map((name) => (
                <option key={name}>{name}</option>
              ))}
          </select>
        </label>
        <label>
          Smoothing
          <input
            type="range"
            min="0"
            max="0.95"
            step="0.05"
            value={smoothing}
            onInput={(event) => setQuery({ smooth: event.currentTarget.value })}
          />
          <output class="num">{smoothing.toFixed(2)}</output>
        </label>
        {runs.length > 1 && (
          <label>
            Beside
            <select
              value=""
              onChange={(event) =>
                event.currentTarget.value && setQuery({ with: [...others, event.currentTarget.value].join(",") })
              }
            >
              <option value="">another run …</option>
              {runs
                .filter((each) => each.id !== run.id && !others.includes(each.id))
                .map((each) => (
                  <option key={each.id} value={each.id}>
                    {each.name}
                  </option>
                ))}
            </select>
          </label>
        )}
        {others.length > 0 && (
          <ul class="legend" aria-label="Runs in the charts">
            <li>
              <i style={{ background: "var(--s1)" }} />
              {run.name}
            </li>
            {others.map((id, at) => (
              <li key={id}>
                <i style={{ background: `var(--${palette[(at + 2) % palette.length]})` }} />
                <a href={links.run(id)}>{nameOf(id)}</a>
                <button
                  type="button"
                  class="remove"
                  aria-label={`Without ${nameOf(id)}`}
                  onClick={() => setQuery({ with: others.filter((each) => each !== id).join(",") })}
                >
                  ×
                </button>
              </li>
            ))}
          </ul>
        )}
        {chosen.length > 0 && (
          <button type="button" class="plain" onClick={() => setQuery({ m: "" })}>
            Usual metrics
          </button>
        )}
      </div>
      <Missing of={own} what="the curves" />
      {listed.error && <Missing of={listed} what="the list of other runs" />}
      {others.map(
        (id) =>
          typeof beside[id] === "string" && (
            <p class="error" role="alert" key={id}>
              {nameOf(id)} has no curves here: {beside[id]} It is looked at again every few seconds; × beside its name
              takes it away.
            </p>
          ),
      )}
      {!metrics.length && (
        <p class="empty">
          No step has been trained yet, so there are no curves. They appear here with the first step;{" "}
          <a href={links.episodes(run.id)}>episodes</a> come before it.
        </p>
      )}
      <div class="charts">
        {metrics.map((metric, at) => (
          <div class="panel" key={metric}>
            <button
              type="button"
              class="remove"
              aria-label={`Remove ${metric}`}
              onClick={() => set(metrics.filter((name) => name !== metric))}
            >
              ×
            </button>
            <Chart
              title={metric}
              curves={drawn[at]!}
              smoothing={smoothing}
              onStep={(step) => go(links.step(run.id, step))}
            />
          </div>
        ))}
      </div>
    </section>
  );
}
