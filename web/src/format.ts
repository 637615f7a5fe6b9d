/** Numbers and times as text: short, and always with the same number of digits for the same size. */
import type { Num } from "./data/types";

const none = "–";
const thin = "\u202f";

/** With a minus that is as wide as a plus. */
const minus = (text: string) => text.replaceAll("-", "−");

/** Four significant digits at most; thousands as k and M. */
export function num(value: Num | undefined, digits = 3): string {
  if (value === null || value === undefined) return none;
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e6) return minus((value / 1e6).toFixed(2)) + "M";
  if (size >= 1e4) return minus((value / 1e3).toFixed(1)) + "k";
  if (Number.isInteger(value)) return minus(String(value));
  const text =
    size >= 100 ? value.toFixed(1) : size >= 0.001 ? value.toFixed(size >= 10 ? 2 : digits) : value.toExponential(1);
  return minus(text);
}

/** All digits that matter: for a token's panel and for sums that are compared. */
export function exact(value: Num | undefined, digits = 6): string {
  if (value === null || value === undefined) return none;
  if (!Number.isFinite(value) || Number.isInteger(value)) return minus(String(value));
  const text = Math.abs(value) < 1e-4 ? value.toExponential(digits - 2) : value.toFixed(digits);
  return minus(text);
}

const unseen = /[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u{e0000}-\u{e007f}]/gu;

/** A sign for what is not seen, or changes how what comes after it is read: an escape of a terminal, a turn of the
 * direction of writing, a letter that only models read. */
export const visible = (text: string) =>
  text.replace(unseen, (sign) => {
    const code = sign.codePointAt(0)!;
    if (code === 0x7f) return "␡";
    return code < 0x20
      ? String.fromCodePoint(0x2400 + code)
      : `‹U+${code.toString(16).toUpperCase().padStart(4, "0")}›`;
  });

/** As it was written, for settings and for numbers that are looked up; of measurements the first eight digits. */
export const plain = (value: number) => String(Number.isInteger(value) ? value : Number(value.toPrecision(8)));

export function signed(value: Num | undefined, digits = 3): string {
  if (value === null || value === undefined) return none;
  return (value > 0 ? "+" : value < 0 ? "−" : "") + num(Math.abs(value), digits);
}

export function count(value: Num | undefined): string {
  if (value === null || value === undefined) return none;
  return String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, thin);
}

export function share(part: number, whole: number): string {
  if (!whole) return none;
  const percent = (100 * part) / whole;
  return (percent > 0 && percent < 0.1 ? "< 0.1" : percent.toFixed(percent < 10 ? 1 : 0)) + thin + "%";
}

export function seconds(value: Num | undefined): string {
  if (value === null || value === undefined) return none;
  if (value === 0) return `0${thin}s`;
  if (value < 0.001) return `${(value * 1e6).toFixed(0)}${thin}µs`;
  if (value < 1) return `${(value * 1e3).toFixed(value < 0.01 ? 1 : 0)}${thin}ms`;
  if (value < 120) return `${value.toFixed(value < 10 ? 2 : 1)}${thin}s`;
  if (value < 7200) return `${(value / 60).toFixed(1)}${thin}min`;
  return `${(value / 3600).toFixed(1)}${thin}h`;
}

export function ago(at: Num | undefined): string {
  if (at === null || at === undefined) return none;
  const past = Date.now() / 1000 - at;
  if (past < 5) return "now";
  if (past < 90) return `${past.toFixed(0)}${thin}s ago`;
  if (past < 5400) return `${(past / 60).toFixed(0)}${thin}min ago`;
  if (past < 129600) return `${(past / 3600).toFixed(0)}${thin}h ago`;
  return new Date(at * 1000).toISOString().slice(0, 10);
}

export const plural = (number: number, one: string, many = one + "s") =>
  `${count(number)} ${number === 1 ? one : many}`;

/** A reason of a mask or a fork, as it is called everywhere on the page. */
export const reasonText = (reason: string) => reason.replaceAll("_", " ");
