/** The episodes of a run: filtered by reward, text and kind, as many as there are. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Empty, Failed, Missing, Outcome, Signed } from "../parts/Basics";
import { Histogram } from "../parts/Histogram";
import { Typed } from "../parts/Typed";
import { VirtualList } from "../parts/VirtualList";
import { useEpisodeCount, useGetRead, useRounds } from "../data/live";
import { get, holds, isReport, route, useGet } from "../data/source";
import type { EpisodeRow, EpisodesPage, Run } from "../data/types";
import { count, num, plural, visible } from "../format";
import { useKeys } from "../keys";
import { go, links, setQuery, type Query } from "../router";

const PAGE = 200;
const filters = [
  "step",
  "group",
  "outcome",
  "agent",
  "tool",
  "q",
  "reward_min",
  "reward_max",
  "reward_below",
  "turns_min",
  "turns_max",
  "advantage_min",
  "advantage_max",
  "stale_min",
  "eval",
];
const sorts = [
  ["num", "oldest first"],
  ["-reward", "highest reward first"],
  ["reward", "lowest reward first"],
  ["-turns", "most turns first"],
  ["turns", "fewest turns first"],
  ["-tokens", "most tokens first"],
  ["tokens", "fewest tokens first"],
] as const;

type Params = Record<string, string | undefined>;

type Pages = Map<number, EpisodeRow[] | null>;

/** Rows by their place in the filtered list, asked for page by page as they come into view. An answer that is newer
 * asks for them anew, since rows have moved; until they come, those that were there stay.
 * first: the first page, which has been asked for already; null while it is on its way. */
function useRows(run: string, params: Params, first: EpisodesPage | null) {
  const key = JSON.stringify(params);
  const [error, setError] = useState<string | null>(null);
  const [, redraw] = useState(0);
  const range = useRef<[number, number]>([0, 0]);
  const cache = useRef<{ key: string; first: EpisodesPage | null; pages: Pages; before: Pages }>();
  if (cache.current?.key !== key) cache.current = { key, first: null, pages: new Map(), before: new Map() };
  const own = cache.current;
  if (first && own.first !== first) {
    const before = new Map([...own.before, ...[...own.pages].filter(([, rows]) => rows !== null)]);
    Object.assign(own, { first, before, pages: new Map([[0, first.episodes]]) });
  }
  const want = (from: number, to: number) => {
    range.current = [from, to];
    if (!own.first) return;
    const { pages } = own;
    for (let page = Math.floor(from / PAGE); page <= Math.floor(to / PAGE); page++) {
      if (pages.has(page)) continue;
      pages.set(page, null);
      get<EpisodesPage>(route(["runs", run, "episodes"], { ...params, offset: page * PAGE, limit: PAGE })).then(
        (found) => {
          pages.set(page, found.episodes);
          setError(null);
          redraw((number) => number + 1);
        },
        (problem: Error) => {
          pages.delete(page);
          setError(problem.message);
        },
      );
    }
  };
  const again = () => want(...range.current);
  useEffect(again, [first]);
  const at = (index: number) => {
    const page = Math.floor(index / PAGE);
    return (own.pages.get(page) ?? own.before.get(page))?.[index % PAGE];
  };
  return { at, want, error, again };
}

export function Episodes({ run, query }: { run: Run; query: Query }) {
  const params = useMemo<Params>(
    () => ({ ...Object.fromEntries(filters.map((name) => [name, query[name]])), sort: query.sort ?? "-num" }),
    [JSON.stringify(query)],
  );
  const first = route(["runs", run.id, "episodes"], { ...params, offset: 0, limit: PAGE });
  const answer = useGetRead<EpisodesPage>(first, useRounds());
  const rows = useRows(run.id, params, answer.loading ? null : answer.data);
  const [current, setCurrent] = useState(0);
  const page = answer.data;

  const total = useEpisodeCount(run.id);
  const fresh = total !== null && page ? total - page.num_listed : 0;
  useEffect(() => setCurrent(0), [params]);
  const unread = page?.num_unread ?? 0;
  useKeys([
    { key: "/", does: "search in the text of episodes", run: () => document.getElementById("words")?.focus() },
    {
      key: "f",
      does: "failed episodes only, or all",
      run: () => setQuery({ outcome: query.outcome === "failed" ? "" : "failed" }),
    },
    { key: "r", does: "show episodes that have come since", run: answer.reload },
    {
      key: "x",
      does: "take all filters away",
      run: () => setQuery(Object.fromEntries(filters.map((name) => [name, ""]))),
    },
    {
      key: "Enter",
      does: "open the chosen episode",
      run: () => rows.at(current) && go(links.episode(run.id, rows.at(current)!.id)),
    },
  ]);

  return (
    <>
      <div class="title">
        <h1>Episodes</h1>
        <span class="faint" role="status" data-total={page?.total}>
          {page ? plural(page.total, "episode") : ""}
        </span>
        {isReport && (
          <span class="faint">
            Those in full ink are here turn by turn; `ludus watch` shows all of them, and searches what was said.
          </span>
        )}
        {unread > 0 && <span class="faint">{count(unread)} are still being read; filters find them later</span>}
        {fresh > 0 && (
          <button type="button" onClick={answer.reload}>
            {plural(fresh, "new one")}
          </button>
        )}
      </div>
      <Filters run={run} query={query} page={page} />
      <Missing of={answer} what="the episodes" />
      {rows.error && <Failed text={`Some rows are missing: ${rows.error}`} onRetry={rows.again} />}
      {page && page.total === 0 && (
        <Empty>
          {filters.some((name) => query[name])
            ? `No episode is like that${unread > 0 ? " among those that have been read" : ""}: all of the filters above must hold. “All episodes” (x) takes them away.`
            : "No episode has ended yet. Each appears here when it ends; with r, or the button that counts the new ones."}
        </Empty>
      )}
      {page && page.total > 0 && (
        <List run={run.id} total={page.total} rows={rows} current={current} onCurrent={setCurrent} />
      )}
    </>
  );
}

function List(props: {
  run: string;
  total: number;
  rows: ReturnType<typeof useRows>;
  current: number;
  onCurrent: (index: number) => void;
}) {
  const { run, rows } = props;
  return (
    <div class="grid-table episodes">
      <div class="head" aria-hidden="true">
        <span class="num">No.</span>
        <span class="num">Step</span>
        <span>Outcome</span>
        <span class="num">Reward</span>
        <span class="num">Advantage</span>
        <span class="num">Turns</span>
        <span class="num">Tokens</span>
        <span class="num">Forks</span>
        <span class="num">Stale</span>
        <span>Task</span>
        <span class="text">First words</span>
      </div>
      <VirtualList
        label="Episodes"
        count={props.total}
        rowHeight={28}
        current={props.current}
        onCurrent={props.onCurrent}
        onRange={rows.want}
        row={(index, focus) => {
          const row = rows.at(index);
          if (!row)
            return (
              <span class="row waiting" {...focus}>
                …
              </span>
            );
          const isHere = holds(route(["runs", run, "episodes", row.id]));
          return (
            <a class={isHere ? "row" : "row absent"} href={isHere ? links.episode(run, row.id) : undefined} {...focus}>
              <span class="num faint">
                <span class="unseen">number </span>
                {row.num}
              </span>
              <span class="num">
                <span class="unseen">step </span>
                {count(row.step)}
                {row.is_eval && <small> eval</small>}
              </span>
              <Outcome kind={row.outcome} />
              <span class="num">
                <span class="unseen">reward </span>
                {num(row.reward)}
              </span>
              <span>
                <span class="unseen">advantage </span>
                <Signed value={row.advantage_mean} most={1} />
              </span>
              <span class="num">
                {row.num_turns}
                <span class="unseen"> turns</span>
              </span>
              <span class="num">
                {count(row.num_tokens)}
                <span class="unseen"> tokens</span>
              </span>
              <span class="num">
                {row.num_forks || ""}
                {row.num_forks ? <span class="unseen"> forks</span> : null}
              </span>
              <span class="num">
                {row.staleness_max || ""}
                {row.staleness_max ? <span class="unseen"> versions stale</span> : null}
              </span>
              <span class="task">{visible(row.task_id ?? row.id)}</span>
              <span class="text">{row.reason ? <em>{visible(row.reason)}</em> : visible(row.first_text ?? "")}</span>
            </a>
          );
        }}
      />
    </div>
  );
}

function Filters({ run, query, page }: { run: Run; query: Query; page: EpisodesPage | null }) {
  const kinds = useGet<EpisodesPage>(route(["runs", run.id, "episodes"], { limit: 1 })).data; // else the page's own
  const edge = (text: string | undefined) => (text === undefined || text === "" ? null : Number(text));
  const outcomes = Object.keys({ ...kinds?.outcomes, ...page?.outcomes });
  const number = (name: string, label: string, step = "any") => (
    <Typed
      type="number"
      step={step}
      placeholder={label.split(" ")[0]}
      aria-label={label}
      value={query[name] ?? ""}
      onText={(text) => setQuery({ [name]: text })}
    />
  );
  const select = (name: string, label: string, values: readonly (readonly [string, string])[]) => (
    <select
      aria-label={label}
      value={query[name] ?? ""}
      onChange={(event) => setQuery({ [name]: event.currentTarget.value })}
    >
      <option value="">{label}</option>
      {values.map(([value, text]) => (
        <option key={value} value={value}>
          {text}
        </option>
      ))}
    </select>
  );
  const same = (values: string[]) => values.filter(Boolean).map((value) => [value, value] as const);
  const chosen = filters.filter((name) => query[name]);
  return (
    <section class="filters panel" aria-label="Filters">
      <Histogram
        label="reward"
        edges={page?.histogram.edges ?? []}
        counts={page?.histogram.counts ?? []}
        range={[edge(query.reward_min), edge(query.reward_below)]}
        onRange={([least, below]) => setQuery({ reward_min: least, reward_below: below, reward_max: "" })}
      />
      <div class="fields">
        <Typed
          id="words"
          type="search"
          placeholder="Text of the episode  (/)"
          aria-label="Search in the text of episodes"
          value={query.q ?? ""}
          onText={(q) => setQuery({ q })}
        />
        {select("sort", "Newest first", sorts)}
        {select("eval", "Training and evaluation", [
          ["0", "training"],
          ["1", "evaluation"],
        ])}
        {(kinds?.agents ?? []).filter(Boolean).length > 0 && select("agent", "Any agent", same(kinds!.agents))}
        {(kinds?.tools ?? []).length > 0 && select("tool", "Any tool", same(kinds!.tools))}
        <span class="pair">
          <label>Step</label>
          {number("step", "at step", "1")}
        </span>
        <span class="pair">
          <label>Turns</label>
          {number("turns_min", "min turns", "1")}
          {number("turns_max", "max turns", "1")}
        </span>
        <span class="pair">
          <label>Advantage</label>
          {number("advantage_min", "min advantage")}
          {number("advantage_max", "max advantage")}
        </span>
        <span class="pair">
          <label>Stale</label>
          {number("stale_min", "min versions stale", "1")}
        </span>
      </div>
      <div class="outcomes" role="group" aria-label="Outcome">
        {outcomes.map((kind) => (
          <button
            type="button"
            key={kind}
            aria-pressed={query.outcome === kind}
            onClick={() => setQuery({ outcome: query.outcome === kind ? "" : kind })}
          >
            <Outcome kind={kind} /> <b class="num">{count(page?.outcomes[kind] ?? 0)}</b>
          </button>
        ))}
        {query.reward_max && <span class="tag">reward at most {query.reward_max}</span>}
        {query.group && <span class="tag">group {query.group}</span>}
        {query.outcome && !outcomes.includes(query.outcome) && <span class="tag">outcome {query.outcome}</span>}
        {chosen.length > 0 && (
          <button
            type="button"
            class="plain"
            onClick={() => setQuery(Object.fromEntries(filters.map((name) => [name, ""])))}
          >
            All episodes
          </button>
        )}
      </div>
    </section>
  );
}
