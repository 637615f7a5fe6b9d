/** Where data comes from: the server's routes, or, in a report that is one file, what stands inside the page. */
import { useEffect, useRef, useState } from "preact/hooks";
import { filtered } from "./filter";
import type { EpisodesPage, Model, Run } from "./types";

type Params = Record<string, string | number | undefined | null>;

const inside = document.getElementById("ludus-data");
const report: Record<string, unknown> | null = inside ? JSON.parse(inside.textContent || "{}") : null;

/** The page is a file that holds its data: nothing can be asked, nothing changes. */
export const isReport = report !== null;

/** Whether that can be shown: all can, but in a report, which holds the turns of some episodes only. */
export const holds = (address: string) => report === null || address in report;

/** Of a report: the one run that it is about. */
export function onlyRun(): string | null {
  const runs = (report?.["/api/runs"] as { runs?: { id: string }[] } | undefined)?.runs ?? [];
  return runs.length === 1 ? runs[0]!.id : null;
}

/** Of the run's own models, if there is one: who asks without a choice asks that. */
export const newestModel = (run: Run): Model | undefined =>
  run.models.filter((each) => !each.served_by).at(-1) ?? run.models.at(-1);

export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

export function route(parts: (string | number)[], params: Params = {}): string {
  const kept = Object.entries(params).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const query = new URLSearchParams(kept.map(([key, value]) => [key, String(value)])).toString();
  return "/api/" + parts.map((part) => encodeURIComponent(part)).join("/") + (query ? "?" + query : "");
}

export async function get<T>(address: string, signal?: AbortSignal): Promise<T> {
  if (report) return lookUp(report, address) as T;
  return (await answer(await fetch(address, { signal, headers: { accept: "application/json" } }))).json();
}

export async function post(address: string, body: unknown, signal?: AbortSignal): Promise<Response> {
  if (report) throw new ApiError(501, "This is a report in one file: for that, open the run with `ludus watch`.");
  const headers = { "content-type": "application/json" };
  return answer(await fetch(address, { method: "POST", headers, body: JSON.stringify(body), signal }));
}

async function answer(response: Response): Promise<Response> {
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  throw new ApiError(
    response.status,
    body?.detail ?? body?.error?.message ?? `The server answered ${response.status}.`,
  );
}

function lookUp(data: Record<string, unknown>, address: string): unknown {
  if (address in data) return data[address];
  const [path = "", query = ""] = address.split("?", 2);
  if (!(path in data)) throw new ApiError(404, "This report does not hold that; `ludus watch` shows all of the run.");
  return path.endsWith("/episodes") ? filtered(data[path] as EpisodesPage, new URLSearchParams(query)) : data[path];
}

export interface Answer<T> {
  data: T | null;
  error: string | null;
  status: number;
  loading: boolean;
  reload: () => void;
}

/** What a route answers. While another one is asked, the last answer stays, so that nothing jumps. null asks nothing.
 * `again`: a number that changes asks once more. */
export function useGet<T>(address: string | null, stays = true, again = 0): Answer<T> {
  const [state, setState] = useState<{ data: T | null; error: string | null; status: number; of: string | null }>({
    data: null,
    error: null,
    status: 0,
    of: null,
  });
  const [round, setRound] = useState(0);
  const last = useRef(address);
  useEffect(() => {
    if (address === null) return;
    last.current = address;
    const abort = new AbortController();
    get<T>(address, abort.signal).then(
      (data) => !abort.signal.aborted && setState({ data, error: null, status: 200, of: address }),
      (error) => {
        if (abort.signal.aborted) return;
        const status = error instanceof ApiError ? error.status : 0;
        setState({ data: null, error: status ? error.message : "The server does not answer.", status, of: address });
      },
    );
    return () => abort.abort();
  }, [address, round, again]);
  const current = state.of === address;
  return {
    data: stays || current ? state.data : null,
    error: current ? state.error : null,
    status: current ? state.status : 0,
    loading: address !== null && !current,
    reload: () => setRound((number) => number + 1),
  };
}
