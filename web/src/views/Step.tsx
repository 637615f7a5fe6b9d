/** One step: its groups with the rewards of their members, its numbers, and its loss beside the sum over its tokens. */
import { useState } from "preact/hooks";
import { Empty, Figure, Missing, Panel, Tree } from "../parts/Basics";
import { outcomeColour, variable } from "../colour";
import { get, holds, route, useGet } from "../data/source";
import type { Episode, EpisodeRow, EpisodesPage, GroupRow, Run, StepPage, TokensPage } from "../data/types";
import { count, exact, num, plural, seconds } from "../format";
import { useKeys } from "../keys";
import { go, links } from "../router";

const TOKENS_AT_ONCE = 5000;
const MOST_EPISODES = 1000;

/** Adds up the loss of every token of these episodes that this page can see, as its own views would show them. */
async function addUp(
  run: string,
  episodes: string[],
  onProgress: (part: number) => void,
): Promise<{ loss: number; trained: number }> {
  let [loss, trained] = [0, 0];
  for (const [at, id] of episodes.entries()) {
    const episode = await get<Episode>(route(["runs", run, "episodes", id]));
    for (const turn of episode.turns) {
      for (let offset = 0, total = 1; offset < total; offset += TOKENS_AT_ONCE) {
        const page = await get<TokensPage>(
          route(["runs", run, "episodes", id, "turns", turn.id, "tokens"], { offset, limit: TOKENS_AT_ONCE }),
        );
        total = page.total;
        for (const token of page.tokens) {
          if (token.loss === null || token.loss === undefined) continue;
          loss += token.loss;
          trained += 1;
        }
      }
    }
    onProgress((at + 1) / episodes.length);
  }
  return { loss, trained };
}

export function Step({ run, step }: { run: Run; step: number }) {
  const answer = useGet<StepPage>(route(["runs", run.id, "steps", step]), false);
  const played = route(["runs", run.id, "episodes"], { step, eval: 0, limit: MOST_EPISODES });
  const episodes = useGet<EpisodesPage>(played, false);
  const at = run.steps.indexOf(step);
  const [before, after] = [run.steps[at - 1], run.steps[at + 1]];
  useKeys([
    { key: "[", does: "the step before", run: () => before !== undefined && go(links.step(run.id, before)) },
    { key: "]", does: "the step after", run: () => after !== undefined && go(links.step(run.id, after)) },
  ]);
  const page = answer.data;
  return (
    <>
      <div class="title">
        <h1>Step {step}</h1>
        <nav class="pager" aria-label="Steps">
          {before !== undefined && (
            <a href={links.step(run.id, before)} rel="prev">
              ← {before}
            </a>
          )}
          {after !== undefined && (
            <a href={links.step(run.id, after)} rel="next">
              {after} →
            </a>
          )}
        </nav>
        <a href={links.episodes(run.id, { step, eval: 0 })}>Its episodes</a>
        {run.evaluations.includes(step) && <a href={links.episodes(run.id, { step, eval: 1 })}>Its evaluation</a>}
      </div>
      <Missing of={answer} what={`step ${step}`} />
      {page && (
        <>
          <dl class="figures" aria-label="Key figures">
            <Figure label="Reward" value={num(page.metrics["rollout/reward"])} />
            <Figure label="Success" value={num(page.metrics["rollout/success"])} />
            <Figure
              label="Groups"
              value={page.groups.length}
              note={`${page.groups.filter((group) => group.flat).length} flat`}
            />
            <Figure label="Trained tokens" value={count(page.num_trained)} />
            <Figure label="Time" value={seconds(page.metrics["time/step_s"])} />
          </dl>
          <div class="two">
            <Panel title="Groups" label="Groups and rewards" side="each mark is an episode, at its reward">
              <Missing of={episodes} what="the rewards of the members" />
              {page.groups.length ? (
                <Groups run={run.id} groups={page.groups} rows={episodes.data?.episodes ?? []} />
              ) : (
                <Empty>
                  No episode of this step is in run.db: it only evaluated, or its episodes were played for another step.
                </Empty>
              )}
            </Panel>
            <Loss run={run.id} page={page} />
          </div>
          <Panel title="All numbers">
            <div class="config">
              <Tree value={nested(page.metrics)} />
            </div>
          </Panel>
        </>
      )}
    </>
  );
}

function nested(metrics: Record<string, number | null>): Record<string, Record<string, number | null>> {
  const areas: Record<string, Record<string, number | null>> = {};
  for (const [name, value] of Object.entries(metrics)) {
    const [area = "", ...rest] = name.split("/");
    (areas[area] ??= {})[rest.join("/") || area] = value;
  }
  return areas;
}

function Loss({ run, page }: { run: string; page: StepPage }) {
  const [own, setOwn] = useState<{ loss: number; trained: number } | null>(null);
  const [part, setPart] = useState<number | null>(null);
  const [error, setError] = useState<string | null>(null);
  const start = () => {
    setPart(0);
    setError(null);
    addUp(
      run,
      page.groups.flatMap((group) => group.episodes),
      setPart,
    ).then(
      (sum) => (setOwn(sum), setPart(null)),
      (problem: Error) => (setError(problem.message), setPart(null)),
    );
  };
  const isWhole = page.groups.every((group) =>
    group.episodes.every((id) => holds(route(["runs", run, "episodes", id]))),
  );
  const apart = (value: number | null) => (value === null || page.loss === null ? null : Math.abs(value - page.loss));
  return (
    <Panel title="Loss" class="loss">
      <table class="table">
        <tbody>
          <tr>
            <th scope="row">of the step, as the trainer reported it</th>
            <td class="num">{exact(page.loss, 8)}</td>
            <td />
          </tr>
          <tr>
            <th scope="row">sum over its tokens, as recorded</th>
            <td class="num">{exact(page.loss_of_tokens, 8)}</td>
            <td class="num">
              <Apart by={apart(page.loss_of_tokens)} />
            </td>
          </tr>
          {isWhole && (
            <tr>
              <th scope="row">added up here, token by token</th>
              <td class="num" data-sum={own ? own.loss : undefined}>
                {own ? exact(own.loss, 8) : part === null ? "–" : `${(100 * part).toFixed(0)} %`}
              </td>
              <td class="num">
                {own ? (
                  <Apart by={apart(own.loss)} />
                ) : (
                  <button type="button" disabled={part !== null} onClick={start}>
                    Add up
                  </button>
                )}
              </td>
            </tr>
          )}
        </tbody>
      </table>
      {error && (
        <p class="error" role="alert">
          The tokens were not added up: {error} “Add up” begins again.
        </p>
      )}
      {page.loss_of_tokens === null && (
        <p class="faint">
          What the loss used of each token was not recorded for this step, or its file in tokens/ is damaged.
        </p>
      )}
      {own && <p class="faint">{plural(own.trained, "token")} with a loss.</p>}
    </Panel>
  );
}

function Apart({ by }: { by: number | null }) {
  if (by === null) return null;
  return (
    <span class={by <= 1e-6 ? "balanced" : "bad"}>{by <= 1e-6 ? "equal" : `differs by ${by.toExponential(1)}`}</span>
  );
}

function Groups({ run, groups, rows }: { run: string; groups: GroupRow[]; rows: EpisodeRow[] }) {
  const of = new Map(rows.map((row) => [row.id, row]));
  const rewards = rows.map((row) => row.reward).filter((value): value is number => value !== null);
  const [least, most] = [Math.min(0, ...rewards), Math.max(1, ...rewards)];
  const middle = (least + most) / 2;
  const near = (a: number | null | undefined, b: number) =>
    typeof a === "number" && Math.abs(a - b) < (most - least) / 100;
  const x = (reward: number) => `${4 + (92 * (reward - least)) / (most - least)}%`;
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Groups">
      <table class="table groups">
        <thead>
          <tr>
            <th>Task</th>
            <th class="num">Members</th>
            <th class="num">Mean</th>
            <th class="num">Std</th>
            <th class="strip">
              <span>{num(least)}</span>
              <span>{num(most)}</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {groups.map((group) => (
            <tr key={group.id} class={group.flat ? "flat" : ""}>
              <td>
                <a href={links.group(run, group.id)}>{group.task_id ?? group.id}</a>
                {group.flat && <small title="All members have one reward: nothing to learn from"> flat</small>}
              </td>
              <td class="num">{group.num_members}</td>
              <td class="num">{num(group.reward_mean)}</td>
              <td class="num">{num(group.reward_std)}</td>
              <td class="strip">
                {group.episodes.map((id, at) => {
                  const row = of.get(id);
                  if (!row || row.reward === null) return null;
                  const place = x(row.reward);
                  const beside = group.episodes
                    .slice(0, at)
                    .filter((other) => near(of.get(other)?.reward, row.reward!)).length;
                  return (
                    <i
                      key={id}
                      style={{
                        left: `calc(${place} + ${(row.reward > middle ? -7 : 7) * beside}px)`,
                        background: variable(outcomeColour[row.outcome] ?? "quiet"),
                      }}
                      title={`${id}: ${num(row.reward)}, ${row.outcome}`}
                    />
                  );
                })}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
