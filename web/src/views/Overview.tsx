/** A run at a glance: what it reaches, whether it is well, where its tokens and its time go. */
import { useMemo } from "preact/hooks";
import { Curves } from "./Curves";
import { Troubles } from "./Troubles";
import { Panel, Figure, Tree, Missing } from "../parts/Basics";
import { PartsBar, StackedSteps, type Part } from "../parts/Bars";
import { Sparkline } from "../parts/Chart";
import { useGetRead, useLive, useRounds } from "../data/live";
import { useSeries } from "../data/series";
import { route, useGet, type Answer } from "../data/source";
import type { FailuresFound, Finding, Ledger, Metrics, Num, Run } from "../data/types";
import { count, num, reasonText, seconds, visible } from "../format";
import { links, type Query } from "../router";

const size = (value: Num) =>
  value === null ? "–" : value < 4096 ? count(value) + " MiB" : num(value / 1024, 1) + " GiB";
const figures: [string, string, (value: Num) => string][] = [
  ["Reward", "rollout/reward", num],
  ["Success", "rollout/success", num],
  ["Entropy", "train/entropy", num],
  ["Staleness", "staleness/mean_versions", num],
  ["Sampled tokens/s", "rollout/tokens_per_s", count],
  ["Trained tokens/s", "train/tokens_per_s", count],
  ["Memory", "memory/rss_mb", size],
  ["Card, at most", "memory/peak_card_mb", size],
];
const timeColours: Record<string, string> = {
  rollout_s: "s1",
  train_s: "s2",
  measure_s: "s3",
  batch_s: "s5",
  publish_s: "s4",
  teacher_s: "s6",
  checkpoint_s: "muted",
  eval_s: "quiet",
};
/** Parts of a step; the two others are of all of it, and of all steps. */
const isPart = (name: string) => /^time\/.+_s$/.test(name) && !/^time\/(step|train_total)_s$/.test(name);
const BETWEEN_STEPS = "time/eval_s";
const LOOK_MS = 5000; // between looks at health, ledger and failures: a run of quick steps has no time for more
const EPISODES_MS = 30_000; // between looks at health while no step comes: it reads all episodes that ended badly
const ledgerColours = ["s2", "s4", "s5", "s6", "s3", "quiet"];

/** Findings that have a place of their own below. */
const told = ["ended_badly", "forked"];

const known = (values: Num[] | undefined) => (values ?? []).filter((value): value is number => value !== null);
const sum = (values: number[]) => values.reduce((a, b) => a + b, 0);

export function Overview({ run, query }: { run: Run; query: Query }) {
  const times = useMemo(() => run.metrics.filter(isPart), [run]);
  const names = useMemo(
    () => [...figures.map(([, name]) => name).filter((name) => run.metrics.includes(name)), ...times, "time/step_s"],
    [run],
  );
  const series = useSeries(run.id, names);
  const [rounds, slow] = [useRounds(LOOK_MS), useRounds(EPISODES_MS)];
  const { more } = rounds;
  const round = rounds.round + slow.round;
  useLive(run.id, { step: more, missed: more, state: more, episodes: slow.more });
  const failures = useGetRead<FailuresFound>(route(["runs", run.id, "failures"]), { round, more });
  return (
    <>
      <h1 class="unseen">Overview of {run.name}</h1>
      <Figures run={run} series={series} />
      <div class="overview">
        <Health run={run} round={round} />
        <LedgerPanel run={run} round={round} />
        <Time series={series} times={times} />
      </div>
      <Troubles run={run} failures={failures} round={round} />
      <Curves run={run} query={query} />
      <About run={run} />
    </>
  );
}

function Figures({ run, series }: { run: Run; series: Answer<Metrics> }) {
  const { data } = series;
  const last = data?.steps.at(-1) ?? run.steps.at(-1) ?? null;
  const spent = sum(known(data?.series["time/step_s"]));
  return (
    <dl class="figures" aria-label="Key figures">
      <Figure
        label="Step"
        value={<span data-live="step">{count(last)}</span>}
        note={spent ? seconds(spent) : undefined}
      />
      {figures
        .filter(([, name]) => run.metrics.includes(name))
        .map(([label, name, text]) => {
          const values = data?.series[name] ?? [];
          return (
            <Figure key={name} label={label} value={text(known(values).at(-1) ?? null)}>
              <Sparkline values={values.slice(-200)} />
            </Figure>
          );
        })}
    </dl>
  );
}

function Health({ run, round }: { run: Run; round: number }) {
  const answer = useGet<{ findings: Finding[] }>(route(["runs", run.id, "health"]), true, round);
  const findings = (answer.data?.findings ?? []).filter((each) => !told.includes(each.kind));
  const words = { bad: "Wrong", warn: "Look", info: "Note" };
  return (
    <Panel title="Health" class="health">
      <Missing of={answer} what="the run's health" />
      {answer.data && !findings.length && (
        <p class="fine">{run.steps.length ? "Nothing looks wrong." : "No step yet: most signs of trouble need ten."}</p>
      )}
      <ul>
        {findings.map((finding) => (
          <li key={finding.kind + finding.text} class={finding.severity}>
            <b>{words[finding.severity] ?? finding.severity}</b>
            <span>
              {visible(finding.text)}{" "}
              {finding.evidence && (
                <a href={finding.evidence}>
                  Show me<span class="unseen">: {finding.kind.replaceAll("_", " ")}</span>
                </a>
              )}
            </span>
          </li>
        ))}
      </ul>
    </Panel>
  );
}

function LedgerPanel({ run, round }: { run: Run; round: number }) {
  const answer = useGet<Ledger>(route(["runs", run.id, "ledger"]), true, round);
  const ledger = answer.data;
  if (!ledger)
    return (
      <Panel title="Where tokens go">
        <Missing of={answer} what="the ledger of tokens" />
      </Panel>
    );
  const reasons = Object.entries(ledger.masked)
    .filter(([, number]) => number > 0)
    .sort((a, b) => b[1] - a[1]);
  const parts: Part[] = [
    { name: "trained", value: ledger.trained, colour: "s1", text: count(ledger.trained) },
    ...reasons.map(([name, value], at) => ({
      name: reasonText(name),
      value,
      colour: ledgerColours[at % ledgerColours.length]!,
      text: count(value),
      link: run.metrics.includes(`ledger/masked_${name}`) ? links.run(run.id, { m: `ledger/masked_${name}` }) : null,
    })),
  ];
  const rows = [
    { name: "trained", colour: "s1", values: ledger.by_step.map((line) => line.trained) },
    ...reasons.map(([reason], at) => ({
      name: reason,
      colour: ledgerColours[at % ledgerColours.length]!,
      values: ledger.by_step.map((line) => line.masked[reason] ?? 0),
    })),
  ];
  return (
    <Panel
      title="Where tokens go"
      side={
        <span class={ledger.balanced ? "balanced" : "bad"}>
          {count(ledger.sampled)} sampled {ledger.balanced ? "= trained + masked" : "≠ trained + masked"}
        </span>
      }
    >
      <PartsBar label="Tokens" parts={parts} />
      <StackedSteps label="Tokens of each step" steps={ledger.by_step.map((line) => line.step)} rows={rows} />
    </Panel>
  );
}

function Time({ series, times }: { series: Answer<Metrics>; times: string[] }) {
  const { data } = series;
  if (!data)
    return (
      <Panel title="Where time goes">
        <Missing of={series} what="the times of the steps" />
      </Panel>
    );
  const total = sum(known(data.series["time/step_s"]));
  const name = (metric: string) => metric.slice("time/".length, -2);
  const sums = times
    .map((metric) => [metric, sum(known(data.series[metric]))] as const)
    .filter(([, value]) => value > 0);
  const rest = total - sum(sums.filter(([metric]) => metric !== BETWEEN_STEPS).map(([, value]) => value));
  const parts: Part[] = sums
    .sort((a, b) => b[1] - a[1])
    .map(([metric, value]) => ({
      name: name(metric),
      value,
      colour: timeColours[metric.slice(5)] ?? "line",
      text: seconds(value),
    }));
  if (rest > 0.01 * total) parts.push({ name: "other", value: rest, colour: "line", text: seconds(rest) });
  const rows = parts
    .filter((part) => part.name !== "other")
    .map((part) => ({ ...part, values: data.series[`time/${part.name}_s`] ?? [] }));
  return (
    <Panel
      title="Where time goes"
      side={total ? `${seconds(total / Math.max(1, known(data.series["time/step_s"]).length))} a step` : undefined}
    >
      {parts.length > 0 ? (
        <PartsBar label="Time" parts={parts} />
      ) : (
        <p class="empty">No step has been timed yet. Each step's times come when it has been trained.</p>
      )}
      <StackedSteps label="Time of each step" steps={data.steps} rows={rows} />
    </Panel>
  );
}

function About({ run }: { run: Run }) {
  return (
    <div class="about">
      {run.algorithm && (
        <Panel title={`Algorithm: ${run.algorithm.name}`}>
          {run.algorithm.formula && (
            <pre class="formula" tabIndex={0}>
              {run.algorithm.formula.join("\n")}
            </pre>
          )}
        </Panel>
      )}
      {run.summary !== null && (
        <Panel title="At the end">
          <Tree value={run.summary} />
        </Panel>
      )}
      <Panel
        title="Configuration"
        side={
          run.checkpoints.length
            ? `${run.checkpoints.length} checkpoints, last of step ${run.checkpoints.at(-1)!.step}`
            : undefined
        }
      >
        <div class="config">
          <Tree value={run.config} />
        </div>
      </Panel>
      <p class="faint">
        <a href={links.episodes(run.id)}>All episodes</a> · <a href={links.steps(run.id)}>all steps</a>
      </p>
    </div>
  );
}
