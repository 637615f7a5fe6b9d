/** The episodes of a report in one file, filtered here as the server would. */
import type { EpisodeRow, EpisodesPage } from "./types";

const text = (row: EpisodeRow) => [row.id, row.task_id, row.first_text, row.reason].join(" ").toLowerCase();
const numbers: [string, (row: EpisodeRow) => number | null][] = [
  ["reward", (row) => row.reward],
  ["turns", (row) => row.num_turns],
  ["advantage", (row) => row.advantage_mean],
  ["stale", (row) => row.staleness_max],
];
const orders: Record<string, (row: EpisodeRow) => number> = {
  num: (row) => row.num,
  reward: (row) => row.reward ?? -Infinity,
  turns: (row) => row.num_turns,
  tokens: (row) => row.num_tokens,
};

export function filtered(page: EpisodesPage, query: URLSearchParams): EpisodesPage {
  const like = page.episodes.filter((row) => matches(row, query));
  const rows = like.filter((row) => !query.get("outcome") || row.outcome === query.get("outcome"));
  const sort = query.get("sort") || "num";
  const order = orders[sort.replace("-", "")] ?? orders.num!;
  rows.sort((a, b) => (sort.startsWith("-") ? order(b) - order(a) : order(a) - order(b)));
  const offset = Number(query.get("offset") ?? 0);
  const outcomes: Record<string, number> = {};
  for (const row of like) outcomes[row.outcome] = (outcomes[row.outcome] ?? 0) + 1;
  return {
    ...page,
    total: rows.length,
    outcomes,
    episodes: rows.slice(offset, offset + Number(query.get("limit") ?? 100)),
  };
}

function matches(row: EpisodeRow, query: URLSearchParams): boolean {
  const is = (name: string, value: string | number | null) =>
    !query.get(name) || query.get(name) === String(value ?? "");
  if (!is("step", row.step) || !is("group", row.group_id) || !is("agent", row.agent)) return false;
  if (query.get("eval") && (query.get("eval") === "1") !== row.is_eval) return false;
  if (query.get("q") && !text(row).includes(query.get("q")!.toLowerCase())) return false;
  return numbers.every(([name, of]) => {
    const [least, most] = [query.get(name + "_min"), query.get(name + "_max")];
    const value = of(row);
    return (
      (!least || (value !== null && value >= Number(least))) && (!most || (value !== null && value <= Number(most)))
    );
  });
}
