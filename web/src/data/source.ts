/** Where data comes from: the server's routes, or, in a report that is one file, what stands inside the page. */
import { useEffect, useState } from "preact/hooks";
import { answered, lost, whenAskedAgain } from "./connection";
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

/** What a request fails with that got no answer. */
const NO_ANSWER =
  "The server does not answer: `ludus watch` has ended, or the connection to its machine is down. Start it again with the same --port, or open the link that it prints.";
/** Why a stream ended that does not end. */
export const BROKEN =
  "The connection to the server broke off, so nothing new is shown. Whatever comes meanwhile is shown once it is back.";
const OTHER_KEY =
  "The server does not take this page's key: `ludus watch` was started again. Open the link that it printed; this page goes on then.";

export class ApiError extends Error {
  constructor(
    /** 0: there was no answer. */
    readonly status: number,
    message: string,
  ) {
    super(message);
  }

  /** It is no answer to what was asked: the same may be answered later. */
  get isLost(): boolean {
    return this.status === 0 || this.status === 401;
  }
}

export function route(parts: (string | number)[], params: Params = {}): string {
  const kept = Object.entries(params).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const query = new URLSearchParams(kept.map(([key, value]) => [key, String(value)])).toString();
  return "/api/" + parts.map((part) => encodeURIComponent(part)).join("/") + (query ? "?" + query : "");
}

export async function get<T>(address: string, signal?: AbortSignal): Promise<T> {
  if (report) return lookUp(report, address) as T;
  const response = await ask(address, { signal, headers: { accept: "application/json" } });
  try {
    return await response.json();
  } catch (error) {
    throw signal?.aborted ? error : noAnswer(); // it broke off in the middle
  }
}

export async function post(address: string, body: unknown, signal?: AbortSignal): Promise<Response> {
  if (report) throw new ApiError(501, "This is a report in one file: for that, open the run with `ludus watch`.");
  const headers = { "content-type": "application/json" };
  return ask(address, { method: "POST", headers, body: JSON.stringify(body), signal });
}

function noAnswer(message = NO_ANSWER): ApiError {
  lost(message);
  return new ApiError(0, message);
}

/** The server's answer. Throws an ApiError that says what was wrong. */
export async function ask(address: string, init: RequestInit): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(address, init);
  } catch (error) {
    throw init.signal?.aborted ? error : noAnswer();
  }
  if (response.ok) {
    answered();
    return response;
  }
  const body = await response.json().catch(() => null);
  const detail: unknown = body?.detail ?? body?.error?.message;
  if (typeof detail !== "string")
    throw noAnswer(`Something between this page and the server answered ${response.status}. ${NO_ANSWER}`);
  if (response.status === 401) lost(OTHER_KEY);
  else answered();
  throw new ApiError(response.status, response.status === 401 ? OTHER_KEY : detail);
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

interface Got<T> {
  data: T | null;
  error: string | null;
  status: number;
  of: string | null;
}

/** What a route answers. While another one is asked, the last answer stays, so that nothing jumps; while the server
 * does not answer, it stays too, and is asked again. null asks nothing. `again`: a number that changes asks once more. */
export function useGet<T>(address: string | null, stays = true, again = 0): Answer<T> {
  const [state, setState] = useState<Got<T>>({ data: null, error: null, status: 0, of: null });
  const [round, setRound] = useState(0);
  const reload = () => setRound((number) => number + 1);
  useEffect(() => {
    if (address === null) return;
    const abort = new AbortController();
    let takeBack = () => {};
    get<T>(address, abort.signal).then(
      (data) => !abort.signal.aborted && setState({ data, error: null, status: 200, of: address }),
      (error: Error) => {
        if (abort.signal.aborted) return;
        const isLost = error instanceof ApiError && error.isLost;
        if (isLost) takeBack = whenAskedAgain(reload);
        setState((old) => ({
          data: isLost && (stays || old.of === address) ? old.data : null,
          error: error.message,
          status: error instanceof ApiError ? error.status : 0,
          of: address,
        }));
      },
    );
    return () => {
      abort.abort();
      takeBack();
    };
  }, [address, round, again]);
  const current = state.of === address;
  return {
    data: stays || current ? state.data : null,
    error: current ? state.error : null,
    status: current ? state.status : 0,
    loading: address !== null && !current,
    reload,
  };
}
