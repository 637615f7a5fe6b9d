/** Whether the server answers. Whatever got no answer waits here, and is asked again together after pauses that grow. */
import { useEffect, useState } from "preact/hooks";

const FIRST_MS = 1000;
const LONGEST_MS = 30_000;
const TICK_MS = 1000;
const ASLEEP_MS = 30_000; // a tick that comes so late: the machine has slept, and its connections may be dead

export interface Connection {
  /** Why nothing comes, and what to do. null: the server answers. */
  problem: string | null;
  /** When it is asked again, as `Date.now()` tells time. */
  nextAt: number;
}

let now: Connection = { problem: null, nextAt: 0 };
let failures = 0;
let timer = 0;
const waiting = new Set<() => void>();
const listeners = new Set<(connection: Connection) => void>();
const sleepers = new Set<() => void>();

function tell(connection: Connection): void {
  now = connection;
  listeners.forEach((call) => call(now));
}

/** A request got no answer. */
export function lost(problem: string): void {
  if (!timer) {
    const pause = Math.min(LONGEST_MS, FIRST_MS * 2 ** failures);
    failures += 1;
    timer = setTimeout(ask, pause);
    tell({ problem, nextAt: Date.now() + pause });
  } else if (problem !== now.problem) tell({ ...now, problem });
}

/** A request got one. */
export function answered(): void {
  if (!failures) return;
  failures = 0;
  tell({ problem: null, nextAt: 0 });
  ask();
}

function ask(): void {
  clearTimeout(timer);
  timer = 0;
  const calls = [...waiting];
  waiting.clear();
  if (calls.length) calls.forEach((call) => call());
  else if (failures) probe(); // what failed is not asked for again by itself
}

function probe(): void {
  fetch("/", { cache: "no-store" }).then(
    (response) => (response.ok ? answered() : lost(now.problem!)),
    () => lost(now.problem!),
  );
}

/** Asks again at once. */
export function retryNow(): void {
  if (!failures) return;
  failures = 1;
  tell({ ...now, nextAt: Date.now() });
  ask();
}

/** Calls once, when the server is asked again; returns what takes that back. */
export function whenAskedAgain(call: () => void): () => void {
  waiting.add(call);
  return () => void waiting.delete(call);
}

/** Calls whenever connections may be dead without anybody having said so. */
export function onWaking(call: () => void): void {
  sleepers.add(call);
}

let tickedAt = Date.now();
setInterval(() => {
  const at = Date.now();
  if (at - tickedAt > ASLEEP_MS) wake();
  tickedAt = at;
}, TICK_MS);

function wake(): void {
  sleepers.forEach((call) => call());
  retryNow();
}
addEventListener("online", wake);

export function useConnection(): Connection {
  const [connection, setConnection] = useState(now);
  useEffect(() => {
    listeners.add(setConnection);
    setConnection(now);
    return () => void listeners.delete(setConnection);
  }, []);
  return connection;
}
