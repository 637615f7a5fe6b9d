/** What the server says while a run trains: one stream a run, shared by whoever listens. */
import { useEffect, useRef, useState } from "preact/hooks";
import { isReport } from "./source";
import type { Num, RunState } from "./types";

export interface Listener {
  step?: (step: number, metrics: Record<string, Num>) => void;
  episodes?: (count: number) => void;
  state?: (state: RunState) => void;
  connected?: (is: boolean) => void;
}

interface Stream {
  source: EventSource;
  listeners: Set<Listener>;
  isOpen: boolean;
}

const streams = new Map<string, Stream>();

function open(run: string): Stream {
  const source = new EventSource(`/api/runs/${encodeURIComponent(run)}/events`);
  const stream: Stream = { source, listeners: new Set(), isOpen: false };
  const tell = (call: (listener: Listener) => void) => stream.listeners.forEach(call);
  const on = <T>(kind: string, call: (data: T) => void) =>
    source.addEventListener(kind, (event) => call(JSON.parse((event as MessageEvent<string>).data)));
  on<{ step: number; metrics: Record<string, Num> }>("step", ({ step, metrics }) =>
    tell((it) => it.step?.(step, metrics)),
  );
  on<{ count: number }>("episodes", ({ count }) => tell((it) => it.episodes?.(count)));
  on<{ state: RunState }>("state", ({ state }) => tell((it) => it.state?.(state)));
  const connected = (is: boolean) => {
    stream.isOpen = is;
    tell((it) => it.connected?.(is));
  };
  source.onopen = () => connected(true);
  source.onerror = () => connected(false);
  return stream;
}

/** Listens to a run as long as the component is there. */
export function useLive(run: string | null, listener: Listener): void {
  const latest = useRef(listener);
  latest.current = listener;
  useEffect(() => {
    if (run === null || isReport) return;
    const stream = streams.get(run) ?? open(run);
    streams.set(run, stream);
    const own: Listener = {
      step: (...all) => latest.current.step?.(...all),
      episodes: (...all) => latest.current.episodes?.(...all),
      state: (...all) => latest.current.state?.(...all),
      connected: (...all) => latest.current.connected?.(...all),
    };
    stream.listeners.add(own);
    own.connected!(stream.isOpen);
    return () => {
      stream.listeners.delete(own);
      if (stream.listeners.size) return;
      stream.source.close();
      streams.delete(run);
    };
  }, [run]);
}

/** How many episodes there are, as told; null until the server says so. */
export function useEpisodeCount(run: string): number | null {
  const [count, setCount] = useState<number | null>(null);
  useLive(run, { episodes: setCount });
  return count;
}
