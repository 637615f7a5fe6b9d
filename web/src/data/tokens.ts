/** Tokens of a turn: read page by page, broken into lines, and what a colour says about each. */
import { useEffect, useRef, useState } from "preact/hooks";
import { whenAskedAgain } from "./connection";
import { ApiError, get, route } from "./source";
import type { Num, Token, TokensPage } from "./types";
import { visible } from "../format";

const PAGE = 2000;
const SHOWN_MS = 250; // between two times that what has come is shown: all of it is coloured anew

export interface Loaded {
  tokens: Token[];
  total: number;
  promptTotal: number;
  isWhole: boolean;
  error: string | null;
  /** Goes on reading after an error. */
  retry?: () => void;
}

const nothing: Loaded = { tokens: [], total: 0, promptTotal: 0, isWhole: false, error: null };

/** All tokens of a turn; the array only grows, and each page that has come gives a new object around it. */
export function useTokens(run: string, episode: string, turn: string, promptOnly = false): Loaded {
  const [loaded, setLoaded] = useState<Loaded>(nothing);
  const [attempt, setAttempt] = useState(0);
  const path = ["runs", run, "episodes", episode, "turns", turn, "tokens"];
  const own = useRef<{ of: string; tokens: Token[] }>({ of: "", tokens: [] });
  const of = route(path) + promptOnly;
  useEffect(() => {
    if (own.current.of !== of) {
      own.current = { of, tokens: [] };
      setLoaded(nothing);
    }
    const { tokens } = own.current;
    const abort = new AbortController();
    let takeBack = () => {};
    const read = async () => {
      for (let whole = false, shownAt = -SHOWN_MS; !whole; ) {
        const page = await get<TokensPage>(route(path, { offset: tokens.length, limit: PAGE }), abort.signal);
        if (abort.signal.aborted) return;
        const wanted = promptOnly ? page.tokens.filter((token) => token.kind === "prompt") : page.tokens;
        tokens.push(...wanted);
        const total = promptOnly ? page.prompt_total : page.total;
        whole = tokens.length >= total || !wanted.length;
        if (!whole && performance.now() - shownAt < SHOWN_MS) continue;
        shownAt = performance.now();
        setLoaded({ tokens, total, promptTotal: page.prompt_total, isWhole: whole, error: null });
      }
    };
    read().catch((error: Error) => {
      if (abort.signal.aborted) return;
      const retry = () => setAttempt((number) => number + 1);
      if (error instanceof ApiError && error.isLost) takeBack = whenAskedAgain(retry);
      setLoaded((old) => ({ ...old, error: error.message, retry }));
    });
    return () => {
      abort.abort();
      takeBack();
    };
  }, [of, attempt]);
  return loaded;
}

const narrow = /[\u00ad\u200b-\u200f\u2060\ufeff]/g; // have no width: a token of one could not be pointed at

/** What is shown for a token: what would not be seen gets a sign. */
export function shown(token: Token): string {
  if (token.text === null || token.text === "") return `‹${token.id}›`;
  const text = token.text.replaceAll("\r", "␍").replaceAll("\n", "⏎").replaceAll("\t", "⇥");
  return visible(text).replace(narrow, (sign) => `‹U+${sign.charCodeAt(0).toString(16).toUpperCase()}›`);
}

const isWide = (text: string) =>
  /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6]|\p{Extended_Pictographic}/u.test(
    text,
  );

function columnsOf(text: string): number {
  let columns = 0;
  for (const sign of text) columns += isWide(sign) ? 2 : 1;
  return columns;
}

/** Lines of a fixed number of columns: places [from, to) of the tokens in each. Adding tokens only changes its end. */
export class Lines {
  readonly starts: number[] = [0];
  private used = 0;
  private done = 0;

  constructor(readonly columns: number) {}

  add(tokens: Token[]): this {
    for (; this.done < tokens.length; this.done++) {
      const token = tokens[this.done]!;
      const width = columnsOf(shown(token));
      if (this.used && this.used + width > this.columns) this.breakAt(this.done);
      this.used += width;
      if (token.text?.includes("\n")) this.breakAt(this.done + 1);
    }
    return this;
  }

  private breakAt(place: number): void {
    this.starts.push(place);
    this.used = 0;
  }

  get count(): number {
    return this.starts.at(-1) === this.done && this.starts.length > 1 ? this.starts.length - 1 : this.starts.length;
  }

  range(line: number): [number, number] {
    return [this.starts[line]!, this.starts[line + 1] ?? this.done];
  }

  lineOf(place: number): number {
    let [low, high] = [0, this.starts.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.starts[middle]! <= place) low = middle;
      else high = middle - 1;
    }
    return low;
  }
}

export function useLines(loaded: Loaded, columns: number): Lines {
  const own = useRef<{ lines: Lines; tokens: Token[] }>({ lines: new Lines(columns), tokens: loaded.tokens });
  if (own.current.lines.columns !== columns || own.current.tokens !== loaded.tokens)
    own.current = { lines: new Lines(columns), tokens: loaded.tokens };
  return own.current.lines.add(loaded.tokens);
}

export const colourings = [
  ["logprob", "logprob"],
  ["ratio", "ratio"],
  ["advantage", "advantage"],
  ["loss", "loss"],
  ["entropy", "entropy"],
] as const;
export type Colouring = (typeof colourings)[number][0];

export interface Scale {
  /** -1 … 1 of a token; 0 has no colour. null: nothing is known. */
  of: (token: Token) => Num;
  low: string;
  high: string;
  signed: boolean;
}

const SURPRISING = 6; // nats: a token of 1 in 400

function most(tokens: Token[], value: (token: Token) => Num | undefined): number {
  let found = 0;
  for (const token of tokens) found = Math.max(found, Math.abs(value(token) ?? 0));
  return found;
}

const by = (value: Num | undefined, size: number): Num =>
  value === null || value === undefined ? null : Math.max(-1, Math.min(1, value / (size || 1)));

export function scale(kind: Colouring, tokens: Token[]): Scale {
  if (kind === "logprob")
    return {
      of: (token) => by(token.logprob === null || token.logprob === undefined ? null : -token.logprob, SURPRISING),
      low: "certain",
      high: "1 in 400",
      signed: false,
    };
  if (kind === "entropy") {
    const size = most(tokens, (token) => token.entropy);
    return { of: (token) => by(token.entropy, size), low: "0", high: `${size.toFixed(2)} nats`, signed: false };
  }
  const value: (token: Token) => Num =
    kind === "ratio" ? (token) => (token.ratio ? Math.log(token.ratio) : null) : (token) => token[kind] ?? null;
  const size = most(tokens, value);
  const text = (sign: 1 | -1) =>
    !size ? "–" : kind === "ratio" ? Math.exp(sign * size).toFixed(3) : `${sign < 0 ? "−" : "+"}${size.toPrecision(2)}`;
  return { of: (token) => by(value(token), size), low: text(-1), high: text(1), signed: true };
}
