/** Keys: each view names its own, and the help lists those that hold now. */
import { useEffect, useRef } from "preact/hooks";

export interface Key {
  key: string;
  does: string;
  run: (event: KeyboardEvent) => void;
}

const stack: { keys: Key[] }[] = [];
let pending: { key: string; at: number } | null = null;

/** Keys that hold while the component is there. A key of two letters ("g e") is typed one after the other. */
export function useKeys(keys: Key[]): void {
  const entry = useRef({ keys });
  entry.current.keys = keys;
  useEffect(() => {
    const own = entry.current;
    stack.push(own);
    return () => void stack.splice(stack.indexOf(own), 1);
  }, []);
}

export function current(): Key[] {
  return stack.flatMap((entry) => entry.keys);
}

const isTyping = (target: EventTarget | null) =>
  target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));

export function start(): void {
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const target = event.target as HTMLElement;
    if (isTyping(target)) {
      if (event.key === "Escape") target.blur();
      return;
    }
    const typed = pending && event.timeStamp - pending.at < 1200 ? `${pending.key} ${event.key}` : event.key;
    const known = current().reverse();
    const found = known.find((each) => each.key === typed) ?? known.find((each) => each.key === event.key);
    pending = known.some((each) => each.key.startsWith(event.key + " "))
      ? { key: event.key, at: event.timeStamp }
      : null;
    if (!found || event.defaultPrevented) return;
    event.preventDefault();
    pending = null;
    found.run(event);
  });
}
