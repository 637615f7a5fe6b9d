/** What the server says while a run trains: one stream a run, shared by whoever listens. */
import { useEffect, useRef, useState } from "preact/hooks";
import { isReport, useGet, type Answer } from "./source";
import type { Num, RunState } from "./types";

export interface Listener {
  step?: (step: number, metrics: Record<string, Num>) => void;
  episodes?: (count: number) => void;
  state?: (state: RunState) => void;
  connected?: (is: boolean) => void;
  /** The stream was closed for a while: what was said meanwhile has to be asked for. */
  missed?: () => void;
}

class Stream {
  readonly listeners = new Set<Listener>();
  isOpen = false;
  /** Of episodes, as told last; null until the server says so. */
  count: Num = null;
  private source: EventSource | null = null;

  constructor(readonly run: string) {
    this.open();
  }

  open(): void {
    if (this.source) return;
    const source = new EventSource(`/api/runs/${encodeURIComponent(this.run)}/events`);
    const on = <T>(kind: string, call: (data: T) => void) =>
      source.addEventListener(kind, (event) => call(JSON.parse((event as MessageEvent<string>).data)));
    on<{ step: number; metrics: Record<string, Num> }>("step", ({ step, metrics }) =>
      this.tell((it) => it.step?.(step, metrics)),
    );
    on<{ count: number }>("episodes", ({ count }) => {
      this.count = count;
      this.tell((it) => it.episodes?.(count));
    });
    on<{ state: RunState }>("state", ({ state }) => this.tell((it) => it.state?.(state)));
    source.onopen = () => this.connected(true);
    source.onerror = () => this.connected(false);
    this.source = source;
  }

  close(): void {
    this.source?.close();
    this.source = null;
    this.connected(false);
  }

  tell(call: (listener: Listener) => void): void {
    this.listeners.forEach(call);
  }

  private connected(is: boolean): void {
    this.isOpen = is;
    this.tell((it) => it.connected?.(is));
  }
}

const streams = new Map<string, Stream>();

// A browser opens six connections to a server, whatever the number of tabs: those that nobody looks at keep none.
document.addEventListener("visibilitychange", () => {
  for (const stream of streams.values()) {
    if (document.hidden) stream.close();
    else {
      stream.open();
      stream.tell((it) => it.missed?.());
    }
  }
});
addEventListener("pagehide", () => streams.forEach((stream) => stream.close()));
addEventListener("pageshow", (event) => event.persisted && streams.forEach((stream) => stream.open()));

/** Listens to a run as long as the component is there. */
export function useLive(run: string | null, listener: Listener): void {
  const latest = useRef(listener);
  latest.current = listener;
  useEffect(() => {
    if (run === null || isReport) return;
    const stream = streams.get(run) ?? new Stream(run);
    streams.set(run, stream);
    const own: Listener = {
      step: (...all) => latest.current.step?.(...all),
      episodes: (...all) => latest.current.episodes?.(...all),
      state: (...all) => latest.current.state?.(...all),
      connected: (...all) => latest.current.connected?.(...all),
      missed: () => latest.current.missed?.(),
    };
    stream.listeners.add(own);
    own.connected!(stream.isOpen);
    return () => {
      stream.listeners.delete(own);
      if (stream.listeners.size) return;
      stream.close();
      streams.delete(run);
    };
  }, [run]);
}

const ROUND_MS = 2000;

export interface Rounds {
  round: number;
  /** Another one, as soon as it may be. */
  more: () => void;
}

/** Rounds of asking, at most one in two seconds. */
export function useRounds(): Rounds {
  const [round, setRound] = useState(0);
  const [wanted, setWanted] = useState(0);
  useEffect(() => {
    if (wanted === round) return;
    const timer = setTimeout(() => setRound(wanted), ROUND_MS);
    return () => clearTimeout(timer);
  }, [wanted, round]);
  return { round, more: () => setWanted((number) => number + 1) };
}

/** What a route answers, asked again every round until the server has read all episodes. */
export function useGetRead<T extends { num_unread?: number }>(address: string, { round, more }: Rounds): Answer<T> {
  const answer = useGet<T>(address, true, round);
  useEffect(() => {
    if (answer.data?.num_unread) more();
  }, [answer.data]);
  return answer;
}

/** How many episodes there are, as told; null until the server says so. */
export function useEpisodeCount(run: string): Num {
  const [count, setCount] = useState<Num>(streams.get(run)?.count ?? null);
  useLive(run, { episodes: setCount });
  return count;
}
