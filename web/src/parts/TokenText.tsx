/** Text as tokens, each coloured by one of its numbers and open to the pointer and the arrow keys; any length. */
import { Component } from "preact";
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { TokenStrip } from "./TokenStrip";
import { shown, useLines, type Loaded, type Scale } from "../data/tokens";
import type { Token } from "../data/types";
import { count, exact, visible } from "../format";
import { keyOf } from "../keys";

const LINE = 22;
const MARGIN = 12;

const isSpecial = (token: Token) => token.kind === "prompt" && /^<[|/\w｜][^<>\s]*>$/.test(token.text ?? "");

function background(value: number | null, signed: boolean): string | undefined {
  if (value === null || Math.abs(value) < 0.01) return undefined;
  const name = signed ? (value < 0 ? "minus" : "plus") : "heat";
  return `color-mix(in oklab, var(--${name}) calc(var(--tint) * ${(0.08 + 0.62 * Math.abs(value)).toFixed(2)}), transparent)`;
}

function classOf(token: Token): string {
  const parts = ["tok", token.kind];
  if (isSpecial(token)) parts.push("special");
  if (token.mask) parts.push("masked");
  if (token.clipped) parts.push("clipped");
  return parts.join(" ");
}

interface LineProps {
  tokens: Token[];
  from: number;
  to: number;
  scale: Scale | null;
  selected: number;
  total: number;
  id: string;
}

class Line extends Component<LineProps> {
  shouldComponentUpdate(next: LineProps): boolean {
    return (Object.keys(next) as (keyof LineProps)[]).some((name) => next[name] !== this.props[name]);
  }

  render({ tokens, from, to, scale, selected, total, id }: LineProps) {
    return tokens.slice(from, to).map((token, index) => {
      const at = from + index;
      const value = scale && token.kind === "sampled" ? scale.of(token) : null;
      const style = { background: value === null ? undefined : background(value, scale!.signed) };
      return (
        <span
          key={at}
          id={`${id}-${at}`}
          role="option"
          aria-selected={at === selected}
          aria-label={shown(token).trim() ? undefined : JSON.stringify(token.text)}
          aria-setsize={total}
          aria-posinset={at + 1}
          class={classOf(token)}
          data-at={at}
          style={style}
        >
          {shown(token)}
        </span>
      );
    });
  }
}

export function TokenText(props: {
  label: string;
  loaded: Loaded;
  scale: Scale | null;
  selected: number;
  onSelect: (at: number) => void;
  onEnter?: () => void;
}) {
  const { loaded, scale, selected } = props;
  const box = useRef<HTMLDivElement>(null);
  const ruler = useRef<HTMLSpanElement>(null);
  const id = useMemo(() => "t" + Math.random().toString(36).slice(2, 7), []);
  const [size, setSize] = useState({ columns: 80, height: 500 });
  const [top, setTop] = useState(0);
  useLayoutEffect(() => {
    const element = box.current!;
    const measure = () => {
      const wide = ruler.current!.getBoundingClientRect().width / 20;
      setSize({
        columns: Math.max(16, Math.floor((element.clientWidth - 2 * MARGIN - 4) / wide)),
        height: element.clientHeight,
      });
    };
    const watch = new ResizeObserver(measure);
    watch.observe(element);
    return () => watch.disconnect();
  }, []);
  const lines = useLines(loaded, size.columns);
  const first = Math.max(0, Math.floor((top - MARGIN) / LINE) - 6);
  const last = Math.min(lines.count - 1, Math.ceil((top + size.height) / LINE) + 6);

  const seen = useRef("");
  useLayoutEffect(() => {
    const now = `${selected} ${size.columns}`;
    if (selected < 0 || now === seen.current || selected >= loaded.tokens.length) return;
    seen.current = now;
    const element = box.current!;
    const y = lines.lineOf(selected) * LINE + MARGIN;
    if (y < element.scrollTop || y + LINE > element.scrollTop + element.clientHeight)
      element.scrollTop = y - element.clientHeight / 3;
  }, [selected, loaded, lines]);

  const isInView = selected >= 0 && lines.lineOf(selected) >= first && lines.lineOf(selected) <= last;
  const select = (at: number) => props.onSelect(Math.max(0, Math.min(loaded.tokens.length - 1, at)));
  const vertical = (by: number) => {
    const line = lines.lineOf(selected);
    const to = Math.max(0, Math.min(lines.count - 1, line + by));
    select(Math.min(lines.range(to)[1] - 1, lines.range(to)[0] + selected - lines.range(line)[0]));
  };
  const flagged = (by: 1 | -1) => {
    for (let at = selected + by; at >= 0 && at < loaded.tokens.length; at += by)
      if (loaded.tokens[at]!.clipped || loaded.tokens[at]!.mask) return select(at);
  };
  const rows = Math.max(1, Math.floor(size.height / LINE) - 1);
  const moves: Record<string, () => void> = {
    ArrowRight: () => select(selected + 1),
    ArrowLeft: () => select(selected < 0 ? 0 : selected - 1),
    ArrowDown: () => (selected < 0 ? select(lines.range(first)[0]) : vertical(1)),
    ArrowUp: () => vertical(-1),
    PageDown: () => vertical(rows),
    PageUp: () => vertical(-rows),
    Home: () => select(0),
    End: () => select(loaded.tokens.length - 1),
    n: () => flagged(1),
    N: () => flagged(-1),
    Enter: () => props.onEnter?.(),
  };

  const visible = [];
  for (let line = first; line <= last; line++) {
    const [from, to] = lines.range(line);
    visible.push(
      <div key={line} role="presentation" style={{ top: `${line * LINE + MARGIN}px` }}>
        <Line
          tokens={loaded.tokens}
          from={from}
          to={to}
          scale={scale}
          selected={selected >= from && selected < to ? selected : -1}
          total={loaded.total}
          id={id}
        />
      </div>,
    );
  }
  return (
    <div class="token-text">
      {scale && <TokenStrip loaded={loaded} scale={scale} selected={selected} onSelect={select} />}
      <div
        ref={box}
        class="token-lines"
        role="listbox"
        tabIndex={0}
        aria-label={`${props.label}, ${count(loaded.total)} tokens`}
        aria-activedescendant={isInView ? `${id}-${selected}` : undefined}
        onScroll={(event) => setTop(event.currentTarget.scrollTop)}
        onClick={(event) => {
          const at = (event.target as HTMLElement).dataset.at;
          if (at !== undefined) select(Number(at));
        }}
        onKeyDown={(event) => {
          const move = moves[keyOf(event) ?? ""];
          if (!move) return;
          event.preventDefault();
          move();
        }}
      >
        <span ref={ruler} class="ruler" aria-hidden="true">
          00000000000000000000
        </span>
        <div role="presentation" class="height" style={{ height: `${lines.count * LINE + 2 * MARGIN}px` }}>
          {visible}
        </div>
      </div>
    </div>
  );
}

/** A text of tokens in a few lines, without numbers: for a title or a label. */
export const preview = (token: Token) => visible(JSON.stringify(token.text ?? `#${token.id}`));
export const probability = (logprob: number | null | undefined) =>
  logprob === null || logprob === undefined ? "" : `p ${exact(Math.exp(logprob), 4)}`;
