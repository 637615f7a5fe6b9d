/** The episodes of a report in one file, filtered here as the server would. */
import { shownFrom, shownTo } from "./shown";
import type { EpisodeRow, EpisodesPage } from "./types";

const exactly = (bound: number) => bound;
type Bound = (bound: number) => number;
const numbers: [string, (row: EpisodeRow) => number | null, Bound, Bound][] = [
  ["reward", (row) => row.reward, shownFrom, shownTo],
  ["turns", (row) => row.num_turns, exactly, exactly],
  ["advantage", (row) => row.advantage_mean, shownFrom, shownTo],
  ["stale", (row) => row.staleness_max, exactly, exactly],
];
const orders: Record<string, (row: EpisodeRow) => number | null> = {
  num: (row) => row.num,
  reward: (row) => row.reward,
  turns: (row) => row.num_turns,
  tokens: (row) => row.num_tokens,
};

export function filtered(page: EpisodesPage, query: URLSearchParams): EpisodesPage {
  const without = (name: string) => page.episodes.filter((row) => matches(row, query, name));
  const rows = without("");
  const sort = query.get("sort") || "num";
  const order = orders[sort.replace("-", "")] ?? orders.num!;
  const sign = sort.startsWith("-") ? -1 : 1;
  rows.sort((one, two) => {
    const [a, b] = [order(one), order(two)];
    if (a === null || b === null) return a === b ? two.num - one.num : a === null ? 1 : -1; // what has none comes last
    return sign * (a - b) || two.num - one.num;
  });
  const offset = Number(query.get("offset") ?? 0);
  const outcomes: Record<string, number> = {};
  for (const row of without("outcome")) outcomes[row.outcome] = (outcomes[row.outcome] ?? 0) + 1;
  return {
    ...page,
    total: rows.length,
    outcomes,
    histogram: recounted(page.histogram, without("reward")),
    episodes: rows.slice(offset, offset + Number(query.get("limit") ?? 100)),
  };
}

function recounted({ edges, counts }: EpisodesPage["histogram"], rows: EpisodeRow[]): EpisodesPage["histogram"] {
  const found = counts.map(() => 0);
  for (const { reward } of rows) {
    if (reward === null) continue;
    const bin = edges.findLastIndex((edge) => reward >= shownFrom(edge));
    found[Math.max(0, Math.min(found.length - 1, bin))]! += 1;
  }
  return { edges, counts: found };
}

const words = (text: string) => text.toLowerCase().match(/[\p{L}\p{N}_]+/gu) ?? [];

/** Whether each word is there, the last one at least begun. */
function holds(row: EpisodeRow, query: string): boolean {
  const wanted = words(query);
  const own = words([row.id, row.task_id, row.first_text, row.reason].join(" "));
  return (
    wanted.length > 0 &&
    wanted.every((word, at) => own.some((each) => (at === wanted.length - 1 ? each.startsWith(word) : each === word)))
  );
}

/** Whether it passes all filters but one. */
function matches(row: EpisodeRow, query: URLSearchParams, but: string): boolean {
  const asked = (name: string) => (name === but ? null : query.get(name));
  const is = (name: string, value: string | number | null) => !asked(name) || asked(name) === String(value ?? "");
  const has = (name: string, names: string | null) => !asked(name) || (names ?? "").split(", ").includes(asked(name)!);
  if (!is("step", row.step) || !is("group", row.group_id) || !is("outcome", row.outcome)) return false;
  if (!has("agent", row.agent) || !has("tool", row.tools)) return false;
  if (query.get("eval") && (query.get("eval") === "1") !== row.is_eval) return false;
  if (query.get("q") && !holds(row, query.get("q")!)) return false;
  const below = but === "reward" ? "" : query.get("reward_below");
  if (below && !(row.reward !== null && row.reward < shownFrom(Number(below)))) return false;
  return numbers.every(([name, of, from, to]) => {
    const [least, most] = name === but ? ["", ""] : [query.get(name + "_min"), query.get(name + "_max")];
    const value = of(row);
    return (
      (!least || (value !== null && value >= from(Number(least)))) &&
      (!most || (value !== null && value <= to(Number(most))))
    );
  });
}
