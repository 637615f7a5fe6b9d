/** All steps of a run, the last first. */
import { useMemo, useState } from "preact/hooks";
import { Empty, Missing } from "../parts/Basics";
import { VirtualList } from "../parts/VirtualList";
import { useSeries } from "../data/series";
import type { Num, Run } from "../data/types";
import { count, num, seconds, signed } from "../format";
import { links } from "../router";

const columns: [string, string, (value: Num) => string][] = [
  ["rollout/reward", "Reward", num],
  ["rollout/success", "Success", num],
  ["rollout/episodes", "Episodes", count],
  ["rollout/discarded_episodes", "Discarded", count],
  ["train/loss", "Loss", (value) => signed(value, 4)],
  ["train/entropy", "Entropy", num],
  ["train/kl", "KL", num],
  ["train/clip_fraction", "Clipped", num],
  ["train/grad_norm", "Gradient", num],
  ["staleness/mean_versions", "Staleness", num],
  ["ledger/trained", "Trained", count],
  ["time/step_s", "Time", seconds],
];

export function Steps({ run }: { run: Run }) {
  const shown = columns.filter(([name]) => run.metrics.includes(name));
  const answer = useSeries(
    run.id,
    useMemo(() => shown.map(([name]) => name), [run]),
  );
  const { data } = answer;
  const [current, setCurrent] = useState(0);
  const steps = data?.steps ?? [];
  const grid = { gridTemplateColumns: `64px repeat(${shown.length}, minmax(68px, 1fr))` };
  return (
    <>
      <div class="title">
        <h1>Steps</h1>
        <span class="faint">{count(steps.length)}</span>
      </div>
      <Missing of={answer} what="the steps" />
      {!steps.length && !answer.error && !answer.loading && (
        <Empty>
          No step has been trained yet. The first appears here by itself; until then there are{" "}
          <a href={links.episodes(run.id)}>episodes</a>.
        </Empty>
      )}
      {steps.length > 0 && (
        <div class="grid-table steps">
          <div class="head" style={grid} aria-hidden="true">
            <span class="num">Step</span>
            {shown.map(([name, title]) => (
              <span class="num" key={name} title={name}>
                {title}
              </span>
            ))}
          </div>
          <VirtualList
            label="Steps"
            count={steps.length}
            rowHeight={28}
            current={current}
            onCurrent={setCurrent}
            row={(index, focus) => {
              const at = steps.length - 1 - index;
              return (
                <a class="row" href={links.step(run.id, steps[at]!)} style={grid} {...focus}>
                  <b class="num">
                    <span class="unseen">step </span>
                    {steps[at]}
                  </b>
                  {shown.map(([name, title, text]) => (
                    <span class="num" key={name}>
                      <span class="unseen">{title} </span>
                      {text(data!.series[name]?.[at] ?? null)}
                    </span>
                  ))}
                </a>
              );
            }}
          />
        </div>
      )}
    </>
  );
}
