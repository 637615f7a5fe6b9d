/** Small things that every view uses. */
import type { ComponentChildren } from "preact";
import { outcomeColour, outcomeSign, variable } from "../colour";
import { plain, signed } from "../format";
import { keyOf } from "../keys";
import { retryNow } from "../data/connection";
import type { Num, RunState } from "../data/types";
import type { Answer } from "../data/source";

export function Panel(props: {
  title: ComponentChildren;
  side?: ComponentChildren;
  class?: string;
  label?: string;
  children: ComponentChildren;
}) {
  return (
    <section
      class={"panel " + (props.class ?? "")}
      aria-label={props.label ?? (typeof props.title === "string" ? props.title : undefined)}
    >
      <header>
        <h2>{props.title}</h2>
        {props.side && <div class="side">{props.side}</div>}
      </header>
      {props.children}
    </section>
  );
}

export function Outcome({ kind, bare = false }: { kind: string; bare?: boolean }) {
  return (
    <span class="outcome" title={kind}>
      <i style={{ color: variable(outcomeColour[kind] ?? "quiet") }} aria-hidden="true">
        {outcomeSign[kind] ?? "·"}
      </i>
      {bare ? <span class="unseen">{kind}</span> : " " + kind}
    </span>
  );
}

export function State({ of }: { of: RunState }) {
  return <span class={"state " + of}>{of}</span>;
}

/** A number with its sign, and a bar from the middle that shows its size against `most`. */
export function Signed({ value, most = 1 }: { value: Num; most?: number }) {
  if (value === null) return <span class="num signed faint">–</span>;
  const part = Math.min(1, Math.abs(value) / (most || 1)) * 50;
  return (
    <span class="num signed">
      <i aria-hidden="true">
        <i
          style={{
            [value < 0 ? "right" : "left"]: "50%",
            width: `${part}%`,
            background: variable(value < 0 ? "minus" : "plus"),
          }}
        />
      </i>
      {signed(value)}
    </span>
  );
}

export function Figure(props: {
  label: string;
  value: ComponentChildren;
  note?: ComponentChildren;
  children?: ComponentChildren;
}) {
  return (
    <div class="figure">
      <dt>{props.label}</dt>
      <dd>
        <b>{props.value}</b>
        {props.note && <small>{props.note}</small>}
        {props.children}
      </dd>
    </div>
  );
}

/** What was wrong, and a way to try again. */
export function Failed({ text, onRetry }: { text: string; onRetry: () => void }) {
  const retry = () => {
    retryNow();
    onRetry();
  };
  return (
    <div class="error" role="alert">
      <p>{text}</p>
      <button type="button" onClick={retry}>
        Try again
      </button>
    </div>
  );
}

/** What stands in the place of data that is not there (yet). */
export function Missing<T>({ of, what }: { of: Answer<T>; what: string }) {
  if (of.error && of.data === null) return <Failed text={`Without ${what}: ${of.error}`} onRetry={of.reload} />;
  return of.loading && of.data === null ? (
    <p class="loading" role="status">
      Reading {what} …
    </p>
  ) : null;
}

export const Empty = ({ children }: { children: ComponentChildren }) => <p class="empty">{children}</p>;

/** One of several, as a row of buttons. */
export function Choice<T extends string>(props: {
  label: string;
  value: T;
  of: readonly (readonly [T, string])[];
  onChange: (value: T) => void;
}) {
  return (
    <div class="choice" role="radiogroup" aria-label={props.label}>
      {props.of.map(([value, text]) => (
        <button
          type="button"
          key={value}
          role="radio"
          aria-checked={value === props.value}
          tabIndex={value === props.value ? 0 : -1}
          onClick={() => props.onChange(value)}
          onKeyDown={(event) => {
            const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[keyOf(event) ?? ""];
            if (!by) return;
            event.preventDefault();
            event.stopPropagation();
            const at = props.of.findIndex(([each]) => each === props.value);
            const next = (at + by + props.of.length) % props.of.length;
            props.onChange(props.of[next]![0]);
            (event.currentTarget.parentElement!.children[next] as HTMLElement).focus();
          }}
        >
          {text}
        </button>
      ))}
    </div>
  );
}

/** Names and values of a tree, whatever it holds. */
export function Tree({ value, depth = 0 }: { value: unknown; depth?: number }) {
  if (value === null || value === undefined) return <span class="faint">–</span>;
  if (typeof value !== "object")
    return <span class="value">{typeof value === "number" ? plain(value) : String(value)}</span>;
  const entries = Object.entries(value);
  if (!entries.length) return <span class="faint">{Array.isArray(value) ? "[]" : "{}"}</span>;
  if (Array.isArray(value) && value.every((each) => typeof each !== "object"))
    return <span class="value">{value.join(", ")}</span>;
  return (
    <dl class={depth ? "tree" : "tree top"}>
      {entries.map(([name, each]) => (
        <div key={name} class={each !== null && typeof each === "object" && Object.keys(each).length ? "branch" : ""}>
          <dt>{name}</dt>
          <dd>
            <Tree value={each} depth={depth + 1} />
          </dd>
        </div>
      ))}
    </dl>
  );
}
