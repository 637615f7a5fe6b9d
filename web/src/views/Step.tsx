/** One step: its groups with the rewards of their members, its numbers, and its loss beside the sum over its tokens. */
import { useState } from "preact/hooks";
import { Empty, Figure, Missing, Panel, Tree } from "../parts/Basics";
import { VirtualList } from "../parts/VirtualList";
import { outcomeColour, variable } from "../colour";
import { get, holds, route, useGet } from "../data/source";
import type { Episode, GroupRow, Run, StepPage, TokensPage } from "../data/types";
import { count, exact, num, plural, seconds } from "../format";
import { useKeys } from "../keys";
import { go, links } from "../router";

const TOKENS_AT_ONCE = 5000;
const GROUP_ROW = 27;
const MOST_GROUPS = 20; // that are seen at once
const MOST_BESIDE = 12; // marks of one reward

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
              {page.groups.length ? (
                <Groups run={run.id} groups={page.groups} />
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

function Groups({ run, groups }: { run: string; groups: GroupRow[] }) {
  const [current, setCurrent] = useState(0);
  const rewards = groups.flatMap((group) => group.rewards).filter((value) => value !== null);
  const least = rewards.reduce((found, value) => Math.min(found, value), 0);
  const most = rewards.reduce((found, value) => Math.max(found, value), 1);
  return (
    <div class="grid-table groups">
      <div class="head" aria-hidden="true">
        <span>Task</span>
        <span class="num">Members</span>
        <span class="num">Mean</span>
        <span class="num">Std</span>
        <span class="ends">
          <i>{num(least)}</i>
          <i>{num(most)}</i>
        </span>
      </div>
      <VirtualList
        label="Groups"
        count={groups.length}
        rowHeight={GROUP_ROW}
        style={{ height: `${Math.min(MOST_GROUPS, groups.length) * GROUP_ROW}px` }}
        current={current}
        onCurrent={setCurrent}
        row={(index, focus) => {
          const group = groups[index]!;
          return (
            <a class={"row" + (group.flat ? " flat" : "")} href={links.group(run, group.id)} {...focus}>
              <span class="task" title={group.flat ? "All members have one reward: nothing to learn from" : undefined}>
                {group.task_id ?? group.id}
                {group.flat && <small> flat</small>}
              </span>
              <span class="num">
                {group.num_members}
                <span class="unseen"> members, mean </span>
              </span>
              <span class="num">{num(group.reward_mean)}</span>
              <span class="num">
                <span class="unseen">, std </span>
                {num(group.reward_std)}
              </span>
              <Rewards of={group} least={least} most={most} />
            </a>
          );
        }}
      />
    </div>
  );
}

/** A mark for each member at its reward; those of one reward stand beside each other, as far as there is room. */
function Rewards({ of, least, most }: { of: GroupRow; least: number; most: number }) {
  const beside = new Map<number, number>(); // marks by hundredth of the range
  return (
    <span class="strip" aria-hidden="true">
      {of.rewards.map((reward, at) => {
        if (reward === null) return null;
        const [id, outcome] = [of.episodes[at]!, of.outcomes[at]!];
        const part = (reward - least) / (most - least);
        const place = Math.round(100 * part);
        const number = beside.get(place) ?? 0;
        beside.set(place, number + 1);
        if (number >= MOST_BESIDE) return null;
        return (
          <i
            key={id}
            style={{
              left: `calc(${4 + 92 * part}% + ${(part > 0.5 ? -7 : 7) * number}px)`,
              background: variable(outcomeColour[outcome] ?? "quiet"),
            }}
            title={`${id}: ${num(reward)}, ${outcome}`}
          />
        );
      })}
    </span>
  );
}
