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

/** What keys write that have no latin letter on them (Cyrillic, Greek, Arabic …), by their place on the keyboard. */
function byPlace({ code, shiftKey }: KeyboardEvent): string | null {
  const [, letter] = /^Key([A-Z])$/.exec(code) ?? [];
  if (letter) return shiftKey ? letter : letter.toLowerCase();
  const [, digit] = /^Digit(\d)$/.exec(code) ?? [];
  if (digit) return digit;
  return { BracketLeft: "[", BracketRight: "]", Slash: shiftKey ? "?" : "/" }[code] ?? null;
}

const isLatin = (key: string) => key.length > 1 || key <= "~";

/** The key as this page names keys. null: it belongs to the browser or the system, or writes with an input method. */
export function keyOf(event: KeyboardEvent): string | null {
  if (event.isComposing || event.keyCode === 229) return null;
  const isThirdLevel = event.getModifierState("AltGraph"); // with which "[" is written on many keyboards
  if (event.metaKey || (!isThirdLevel && (event.ctrlKey || event.altKey))) return null;
  return isLatin(event.key) || isThirdLevel ? event.key : (byPlace(event) ?? event.key);
}

const written = /^(?!button|checkbox|color|file|image|radio|range|reset|submit)/;
const isTyping = (target: HTMLElement) =>
  target.isContentEditable ||
  /^(TEXTAREA|SELECT)$/.test(target.tagName) ||
  (target instanceof HTMLInputElement && written.test(target.type));

/** Enter does there what a click does. */
const isPressed = (target: HTMLElement) => target.matches("a, button, summary, input");

export function start(): void {
  addEventListener("keydown", (event) => {
    const key = keyOf(event);
    if (key === null || event.defaultPrevented) return;
    const target = event.target as HTMLElement;
    if (isTyping(target)) {
      if (key === "Escape") target.blur();
      return;
    }
    if (document.querySelector("dialog[open]")) return; // it has keys of its own
    if (key === "Enter" && isPressed(target)) {
      if (!(target instanceof HTMLInputElement)) return; // the browser clicks
      event.preventDefault();
      return target.click();
    }
    const typed = pending && event.timeStamp - pending.at < 1200 ? `${pending.key} ${key}` : key;
    const known = current().reverse();
    const found = known.find((each) => each.key === typed) ?? known.find((each) => each.key === key);
    pending = known.some((each) => each.key.startsWith(key + " ")) ? { key, at: event.timeStamp } : null;
    if (!found) return;
    event.preventDefault();
    pending = null;
    found.run(event);
  });
}
