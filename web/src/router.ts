/** Where the reader is, as the address after the #: parts of a path and a query. Every view is one such place. */
import { useEffect, useState } from "preact/hooks";

export type Query = Record<string, string>;
export interface Place {
  parts: string[];
  query: Query;
}

/** As it is, if it is no code: a link may have been cut off in a mail. */
function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function parse(hash: string): Place {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const parts = path.split("/").filter(Boolean).map(decoded);
  return { parts, query: Object.fromEntries(new URLSearchParams(query)) };
}

/** Empty and undefined values of the query are left out. */
export function href(
  parts: (string | number)[],
  query: Record<string, string | number | undefined | null> = {},
): string {
  const kept = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const search = new URLSearchParams(kept.map(([key, value]) => [key, String(value)])).toString();
  return "#/" + parts.map((part) => encodeURIComponent(part)).join("/") + (search ? "?" + search : "");
}

const WRITE_MS = 150; // browsers refuse to change the address hundreds of times in half a minute

let here = parse(location.hash);
let timer = 0;
const listeners = new Set<(place: Place) => void>();

/** The query that each place had last, by its path. */
const left = new Map([[href(here.parts), here.query]]);

function tell(place: Place): void {
  here = place;
  left.set(href(here.parts), here.query);
  listeners.forEach((call) => call(here));
}

/** The link to a place as it was left: its filters, its curves. */
export const asLeft = (link: string) => href(parse(link).parts, left.get(link.split("?")[0]!) ?? parse(link).query);

function write(): void {
  if (!timer) return;
  clearTimeout(timer);
  timer = 0;
  history.replaceState(null, "", href(here.parts, here.query));
}

addEventListener("hashchange", () => {
  clearTimeout(timer);
  timer = 0;
  tell(parse(location.hash));
});
addEventListener("click", write, true); // before a link is followed, so that the way back leads to what was seen
addEventListener("pagehide", write);

export function go(link: string): void {
  write();
  location.hash = link;
}

/** Changes the query of the present place. It replaces the entry of the history: filters are not steps of a walk. */
export function setQuery(changes: Record<string, string | number | undefined | null>): void {
  const { parts, query } = parse(href(here.parts, { ...here.query, ...changes }));
  tell({ parts, query });
  timer ||= setTimeout(write, WRITE_MS);
}

export function usePlace(): Place {
  const [place, setPlace] = useState(here);
  useEffect(() => {
    listeners.add(setPlace);
    setPlace(here);
    return () => void listeners.delete(setPlace);
  }, []);
  return place;
}

export const links = {
  runs: () => href([]),
  run: (run: string, query: Record<string, string> = {}) => href(["run", run], query),
  steps: (run: string) => href(["run", run, "steps"]),
  step: (run: string, step: number) => href(["run", run, "step", step]),
  episodes: (run: string, query: Record<string, string | number | undefined> = {}) =>
    href(["run", run, "episodes"], query),
  group: (run: string, group: string) => href(["run", run, "group", group]),
  episode: (run: string, episode: string, tab = "", query: Record<string, string | number | undefined> = {}) =>
    href(["run", run, "episode", episode, ...(tab ? [tab] : [])], query),
  branches: (run: string, branch?: string) => href(["run", run, "branches", ...(branch ? [branch] : [])]),
  branch: (run: string, episode: string, turn: string) => href(["run", run, "branch"], { episode, turn }),
  chat: (run: string) => href(["run", run, "chat"]),
  /** Without `b`: the first evaluation of the run and its last. */
  compare: (a?: string, b?: string, step_a?: number) => href(["compare"], { a, b: b ?? a, step_a }),
};
