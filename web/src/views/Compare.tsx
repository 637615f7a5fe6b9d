/** Two runs, or two steps of them: on the same held-out rows, in pairs, with an interval; and all their numbers. */
import { useState } from "preact/hooks";
import { Empty, Figure, Missing, Panel } from "../parts/Basics";
import { Typed } from "../parts/Typed";
import { VirtualList } from "../parts/VirtualList";
import { route, useGet } from "../data/source";
import type { ComparedRun, Comparison, Num, Run, RunRow } from "../data/types";
import { num, plural, signed } from "../format";
import { useKeys } from "../keys";
import { links, setQuery, type Query } from "../router";

const FEW_ROWS = 10;
/** With fewer, all rows may point one way by chance: in one of 16 comparisons of five that differ in nothing. */
const LEAST_ROWS = 6;
type Side = "a" | "b";

function Chooser({ side, query, runs }: { side: Side; query: Query; runs: RunRow[] }) {
  const id = query[side];
  const evaluated = useGet<Run>(id ? route(["runs", id]) : null, false).data?.evaluations ?? [];
  return (
    <fieldset class={"chooser " + side}>
      <legend>{side.toUpperCase()}</legend>
      <select
        aria-label={`Run ${side.toUpperCase()}`}
        value={id ?? ""}
        onChange={(event) => setQuery({ [side]: event.currentTarget.value, ["step_" + side]: "" })}
      >
        <option value="">a run …</option>
        {runs.map((each) => (
          <option key={each.id} value={each.id}>
            {each.name}
          </option>
        ))}
      </select>
      <Typed
        list={`steps-${side}`}
        type="number"
        min="0"
        aria-label={`Step of ${side.toUpperCase()}`}
        placeholder="last"
        value={query["step_" + side] ?? ""}
        onText={(text) => setQuery({ ["step_" + side]: text })}
      />
      <datalist id={`steps-${side}`}>
        {evaluated.map((step) => (
          <option key={step} value={step}>
            {step === 0 ? "before training" : "evaluated"}
          </option>
        ))}
      </datalist>
    </fieldset>
  );
}

const nameOf = (run: ComparedRun, step: Num | undefined, fallback: string) =>
  `${run.name ?? run.id ?? fallback}${step === null || step === undefined ? "" : `, step ${step}`}`;

export function Compare({ query }: { query: Query }) {
  const list = useGet<{ runs: RunRow[] }>(route(["runs"]));
  const runs = list.data?.runs ?? [];
  const { a, b, step_a, step_b } = query;
  const isSame = a === b && (step_a ?? "") === (step_b ?? "");
  const answer = useGet<Comparison>(a && b ? route(["compare"], { a, b, step_a, step_b }) : null, false);
  const swap = () => setQuery({ a: b, b: a, step_a: step_b, step_b: step_a });
  useKeys([{ key: "w", does: "swap the two", run: swap }]);
  const found = answer.data;
  return (
    <>
      <div class="title">
        <h1>Compare</h1>
      </div>
      <div class="choosers">
        <Chooser side="a" query={query} runs={runs} />
        <button type="button" class="icon" onClick={swap} aria-label="Swap" title="Swap (w)">
          ⇄
        </button>
        <Chooser side="b" query={query} runs={runs} />
      </div>
      <Missing of={list} what="the list of runs" />
      {!(a && b) && (
        <Empty>
          Choose two runs, or one run twice with two of its steps: 0 is the base model, and without a step it is the
          last one.
        </Empty>
      )}
      {a && b && isSame && (
        <p class="notice">
          A and B are the same. Choose another run or step on one side, such as step 0, the base model.
        </p>
      )}
      <Missing of={answer} what="the comparison" />
      {found && (
        <>
          {found.paired ? (
            <Paired
              paired={found.paired}
              a={nameOf(found.a, found.a.evaluated_step, a!)}
              b={nameOf(found.b, found.b.evaluated_step, b!)}
              notes={found.notes ?? []}
            />
          ) : (
            <p class="notice">{found.why_not}</p>
          )}
          <Metrics
            found={found}
            a={nameOf(found.a, found.a.step, a!)}
            b={nameOf(found.b, found.b.step, b!)}
            words={query.name ?? ""}
          />
        </>
      )}
    </>
  );
}

function Paired(props: { paired: NonNullable<Comparison["paired"]>; a: string; b: string; notes: string[] }) {
  const { paired, a, b } = props;
  const [low, high] = paired.interval;
  const isEnough = paired.rows >= LEAST_ROWS;
  const isClear = isEnough && (low > 0 || high < 0);
  const reach = 1.25 * Math.max(Math.abs(low), Math.abs(high)) || 1; // where all pairs agree nothing says how far
  const x = (value: number) => 50 + (50 * value) / reach;
  const verdict = isClear
    ? `${paired.difference > 0 ? b : a} is better`
    : isEnough
      ? "no clear difference"
      : "too few rows to tell";
  const caveat = paired.rows < FEW_ROWS ? `of ${paired.rows} rows only: with so few, intervals are rough` : undefined;
  return (
    <Panel title="On the same held-out rows" side={plural(paired.rows, "row")} class="paired">
      <dl class="figures small">
        <Figure label={`A: ${a}`} value={num(paired.mean_a)} />
        <Figure label={`B: ${b}`} value={num(paired.mean_b)} />
        <Figure label="B − A" value={signed(paired.difference)} note={`95 %: ${signed(low)} to ${signed(high)}`} />
        <Figure label="Verdict" value={verdict} note={caveat} />
      </dl>
      {props.notes.map((note) => (
        <p class="notice" key={note}>
          {note}
        </p>
      ))}
      <svg
        class="interval"
        viewBox="0 0 100 16"
        preserveAspectRatio="none"
        role="img"
        aria-label={`Difference ${signed(paired.difference)}, interval from ${signed(low)} to ${signed(high)}; ${verdict}`}
      >
        <line x1="0" x2="100" y1="8" y2="8" class="axis" />
        <line x1="50" x2="50" y1="0" y2="16" class="zero" />
        <line x1={x(low)} x2={x(high)} y1="8" y2="8" class={isClear ? "range clear" : "range"} />
        <line
          x1={x(paired.difference)}
          x2={x(paired.difference)}
          y1="3"
          y2="13"
          class={isClear ? "point clear" : "point"}
        />
      </svg>
      <div class="interval-ends num" aria-hidden="true">
        <span>{signed(-reach)}</span>
        <span>0</span>
        <span>{signed(reach)}</span>
      </div>
      <Tasks tasks={paired.tasks} />
    </Panel>
  );
}

function Tasks({ tasks }: { tasks: { task_id: string; a: number; b: number }[] }) {
  const [current, setCurrent] = useState(0);
  const sorted = [...tasks].sort((one, two) => two.b - two.a - (one.b - one.a));
  const least = tasks.reduce((found, { a, b }) => Math.min(found, a, b), 0);
  const most = tasks.reduce((found, { a, b }) => Math.max(found, a, b), 1);
  const x = (value: number) => `${3 + (94 * (value - least)) / (most - least)}%`;
  if (!tasks.length) return null;
  return (
    <div class="grid-table tasks">
      <div class="head" aria-hidden="true">
        <span>Task</span>
        <span class="num">A</span>
        <span class="num">B</span>
        <span class="num">B − A</span>
        <span class="ends">
          <i>{num(least)}</i>
          <i>
            <b class="dot a" /> A <b class="dot b" /> B
          </i>
          <i>{num(most)}</i>
        </span>
      </div>
      <VirtualList
        label="Tasks, those where B gains most first"
        count={sorted.length}
        rowHeight={26}
        current={current}
        onCurrent={setCurrent}
        row={(index, focus) => {
          const task = sorted[index]!;
          const by = task.b - task.a;
          return (
            <div class="row" {...focus}>
              <span class="task">{task.task_id}</span>
              <span class="num">{num(task.a)}</span>
              <span class="num">{num(task.b)}</span>
              <span class={"num " + (by > 0 ? "up" : by < 0 ? "down" : "faint")}>{signed(by)}</span>
              <span class="dumbbell" aria-hidden="true">
                <i
                  class={by < 0 ? "line down" : "line up"}
                  style={{ left: x(Math.min(task.a, task.b)), right: `calc(100% - ${x(Math.max(task.a, task.b))})` }}
                />
                <b class="dot a" style={{ left: x(task.a) }} />
                <b class="dot b" style={{ left: x(task.b) }} />
              </span>
            </div>
          );
        }}
      />
    </div>
  );
}

function Metrics({ found, a, b, words }: { found: Comparison; a: string; b: string; words: string }) {
  const shown = found.metrics.filter((row) => row.name.toLowerCase().includes(words.trim().toLowerCase()));
  return (
    <Panel
      title="All numbers"
      label="Metrics of both"
      side={
        <Typed
          type="search"
          placeholder="Name"
          aria-label="Search numbers"
          value={words}
          onText={(name) => setQuery({ name })}
        />
      }
    >
      <div class="scroll" tabIndex={0} role="region" aria-label="All numbers">
        <table class="table">
          <thead>
            <tr>
              <th>Metric</th>
              <th class="num" title={a}>
                A
              </th>
              <th class="num" title={b}>
                B
              </th>
              <th class="num">B − A</th>
            </tr>
          </thead>
          <tbody>
            {shown.map((row) => (
              <tr key={row.name}>
                <th scope="row">{row.name}</th>
                <td class="num">{num(row.a)}</td>
                <td class="num">{num(row.b)}</td>
                <td class="num">{row.a === null || row.b === null ? "–" : signed(row.b - row.a)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {!shown.length && (
        <Empty>
          {words
            ? `No metric of the two has “${words}” in its name; names are those of metrics.jsonl, such as rollout/reward.`
            : "Neither has metrics at this step. A step's metrics come when it has been trained."}
        </Empty>
      )}
      <p class="faint">
        {found.a.id && <a href={links.run(found.a.id)}>{a}</a>}{" "}
        {found.b.id && found.b.id !== found.a.id && <a href={links.run(found.b.id)}>{b}</a>}
      </p>
    </Panel>
  );
}
