/** What the server says while a run trains: one stream a run, shared by whoever listens. A stream that breaks off is
 * opened again, and what was missed meanwhile is asked for. */
import { useEffect, useRef, useState } from "preact/hooks";
import { answered, lost, onWaking, retryNow, whenAskedAgain } from "./connection";
import { ApiError, ask, BROKEN, isReport, route, useGet, type Answer } from "./source";
import { events, type ServerEvent } from "./stream";
import type { Num, RunState } from "./types";

const SILENT_MS = 45_000; // the server says something every 15 s
const REFUSED_MS = 2000; // between attempts at what the server does not have: the run may not have begun

export interface Listener {
  /** lines: of metrics that the run has had with this step. */
  step?: (step: number, metrics: Record<string, Num>, lines: number) => void;
  episodes?: (count: number) => void;
  state?: (state: RunState) => void;
  connected?: (is: boolean) => void;
  /** Something may have come that no event told of: it has to be asked for. */
  missed?: () => void;
}

function later(ms: number, call: () => void): () => void {
  const timer = setTimeout(call, ms);
  return () => clearTimeout(timer);
}

class Stream {
  readonly listeners = new Set<Listener>();
  isOpen = false;
  /** Of episodes, as told last; null until the server says so. */
  count: Num = null;
  /** Of metrics, as told last. */
  lines = 0;
  private control: AbortController | null = null;
  private takeBack = () => {};
  /** How far the run was when the page read it, or at the last event that was heard; null: not known yet. */
  private readAt: string | null = null;
  /** How far it was at the first event since the stream was opened; null: none has come. */
  private openedAt: string | null = null;

  constructor(readonly run: string) {
    this.open();
  }

  open(): void {
    if (this.control || document.hidden) return;
    this.takeBack();
    this.control = new AbortController();
    this.openedAt = null;
    void this.listen(this.control);
  }

  close(): void {
    this.takeBack();
    this.control?.abort();
    this.control = null;
    this.connected(false);
  }

  tell(call: (listener: Listener) => void): void {
    this.listeners.forEach(call);
  }

  /** The page has read the run as it was then. What it reads later is newer. */
  read(position: string): void {
    if (this.readAt !== null) return;
    this.readAt = position;
    if (this.openedAt !== null) this.compare(this.openedAt);
  }

  private compare(openedAt: string): void {
    if (this.readAt !== null && this.readAt !== openedAt) this.tell((it) => it.missed?.());
  }

  private async listen(control: AbortController): Promise<void> {
    let again = () => whenAskedAgain(() => this.open());
    try {
      const response = await ask(route(["runs", this.run, "events"]), { signal: control.signal });
      for await (const event of events(response, SILENT_MS)) {
        if (control.signal.aborted) return;
        this.heard(event);
      }
      lost(BROKEN);
    } catch (error) {
      if (control.signal.aborted) return;
      if (!(error instanceof ApiError)) lost(BROKEN);
      else if (!error.isLost) again = () => later(REFUSED_MS, () => this.open());
    }
    this.close();
    this.takeBack = again();
  }

  private heard({ kind, id, data }: ServerEvent): void {
    if (this.openedAt === null) {
      this.openedAt = id;
      answered();
      this.connected(true);
      this.compare(id);
    }
    if (this.readAt !== null) this.readAt = id;
    this.lines = Number(id.split(".")[0]);
    if (kind === "step") {
      const { step, metrics } = data as { step: number; metrics: Record<string, Num> };
      this.tell((it) => it.step?.(step, metrics, this.lines));
    } else if (kind === "episodes") {
      this.count = (data as { count: number }).count;
      this.tell((it) => it.episodes?.(this.count!));
    } else if (kind === "state") this.tell((it) => it.state?.((data as { state: RunState }).state));
    else if (kind === "replaced") this.tell((it) => it.missed?.());
  }

  private connected(is: boolean): void {
    this.isOpen = is;
    this.tell((it) => it.connected?.(is));
  }
}

const streams = new Map<string, Stream>();

// A browser opens six connections to a server, whatever the number of tabs: those that nobody looks at keep none.
document.addEventListener("visibilitychange", () => {
  streams.forEach((stream) => (document.hidden ? stream.close() : stream.open()));
  if (!document.hidden) retryNow();
});
addEventListener("pagehide", () => streams.forEach((stream) => stream.close()));
addEventListener("pageshow", (event) => event.persisted && streams.forEach((stream) => stream.open()));
onWaking(() =>
  streams.forEach((stream) => {
    stream.close();
    stream.open();
  }),
);

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

/** The page begins with what it has read of the run: what has come between that and the stream is asked for. */
export const wasRead = (run: string, position: string) => streams.get(run)?.read(position);

/** How many lines of metrics the stream has told of. */
export const toldLines = (run: string) => streams.get(run)?.lines ?? 0;

const ROUND_MS = 2000;

export interface Rounds {
  round: number;
  /** Another one, as soon as it may be. */
  more: () => void;
}

/** Rounds of asking, at most one in so many milliseconds. */
export function useRounds(pauseMs = ROUND_MS): Rounds {
  const [round, setRound] = useState(0);
  const [wanted, setWanted] = useState(0);
  const last = useRef(wanted);
  last.current = wanted;
  const isWanted = wanted !== round;
  useEffect(() => (isWanted ? later(pauseMs, () => setRound(last.current)) : undefined), [isWanted]);
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
