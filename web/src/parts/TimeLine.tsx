/** What happened when: a lane for each agent, model calls and tools as bars of their length. */
import { useMemo, useRef, useState } from "preact/hooks";
import { Empty } from "./Basics";
import { useSeen, type Seen } from "./seen";
import { plural, seconds } from "../format";
import type { Episode, Span, Turn } from "../data/types";

const kinds: Record<Span["kind"], [string, string]> = {
  queue: ["waiting", "quiet"],
  prefill: ["prefill", "s3"],
  first_token: ["until the first token", "s3"],
  decode: ["decode", "s1"],
  model: ["model", "s1"],
  tool: ["tool", "s2"],
  agent: ["agent", "line"],
};
const ROW = 22;
const NAME = 90; // pixels of a lane's name
const THIN = 3; // pixels that a bar has at least; those that are closer together are one
const MOST_ZOOM = 1024;

interface Lane {
  name: string;
  rows: Span[][];
}

/** Spans that overlap stand below each other; those of one model call stay in one row. */
function lanesOf(episode: Episode): Lane[] {
  const agentOf = new Map(episode.turns.map((turn) => [turn.id, turn.agent || "main"]));
  const found = new Map<string, Span[][]>();
  for (const span of [...(episode.spans ?? [])].sort((a, b) => a.start_s - b.start_s)) {
    const name = span.kind === "agent" ? "agents" : ((span.turn && agentOf.get(span.turn)) ?? "main");
    const rows = found.get(name) ?? [];
    found.set(name, rows);
    const free = rows.find((row) => row.at(-1)!.end_s <= span.start_s + 1e-6);
    if (free) free.push(span);
    else rows.push([span]);
  }
  return [...found].map(([name, rows]) => ({ name, rows }));
}

/** Spans that one bar stands for. */
interface Bar {
  spans: Span[];
  start_s: number;
  end_s: number;
}

/** Bars of a row that are seen. Spans that together are too thin to be seen by themselves are one bar. */
function bars(row: Span[], pixels_per_s: number, from_s: number, to_s: number): Bar[] {
  const found: Bar[] = [];
  for (const span of row) {
    if (span.end_s < from_s || span.start_s > to_s) continue;
    const last = found.at(-1);
    if (last && (span.end_s - last.start_s) * pixels_per_s < THIN) {
      last.spans.push(span);
      last.end_s = span.end_s;
    } else found.push({ spans: [span], start_s: span.start_s, end_s: span.end_s });
  }
  return found;
}

function ticks(whole: number, zoom: number, from_s: number, to_s: number): number[] {
  const rough = whole / zoom / 6;
  const power = 10 ** Math.floor(Math.log10(rough || 1));
  const by = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough)!;
  const [first, last] = [Math.ceil(from_s / by), Math.floor(Math.min(to_s, whole) / by)];
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, at) => (first + at) * by);
}

/** What is seen of the time, and how long a pixel of it is. */
function view(seen: Seen, width: number, whole: number) {
  const pixels_per_s = Math.max(1, width - NAME) / whole;
  return {
    pixels_per_s,
    from_s: Math.max(0, (seen.left - NAME) / pixels_per_s),
    to_s: (seen.right - NAME) / pixels_per_s,
  };
}

export function TimeLine({
  episode,
  current,
  onTurn,
}: {
  episode: Episode;
  current: Turn;
  onTurn: (turn: Turn) => void;
}) {
  const spans = episode.spans ?? [];
  const lanes = useMemo(() => lanesOf(episode), [episode]);
  const box = useRef<HTMLDivElement>(null);
  const turnOf = useMemo(() => new Map(episode.turns.map((turn) => [turn.id, turn])), [episode]);
  const [zoom, setZoom] = useState(1);
  const whole = useMemo(() => spans.reduce((most, span) => Math.max(most, span.end_s), 1e-6), [episode]);
  const sums = useMemo(() => sumsOf(spans), [episode]);
  if (!spans.length)
    return (
      <Empty>
        No times are in this episode's record: it was written by another program, or ended before the model was called.
      </Empty>
    );
  /** The moment in the middle stays there. */
  const zoomTo = (to: number) => {
    const scroller = box.current!.parentElement!;
    const middle = (scroller.scrollLeft + scroller.clientWidth / 2) / Math.max(1, box.current!.clientWidth);
    setZoom(to);
    requestAnimationFrame(() => {
      scroller.scrollLeft = middle * box.current!.clientWidth - scroller.clientWidth / 2;
    });
  };
  return (
    <div class="timeline">
      <ul class="legend">
        {sums.map(({ kind, name, colour, sum }) => (
          <li key={kind}>
            <i style={{ background: `var(--${colour})` }} aria-hidden="true" />
            {name} <b class="num">{seconds(sum)}</b>
          </li>
        ))}
        <li class="faint">whole {seconds(whole)}</li>
        <li class="zoom">
          <button type="button" aria-label="Zoom out" disabled={zoom <= 1} onClick={() => zoomTo(zoom / 2)}>
            −
          </button>
          <button type="button" aria-label="Zoom in" disabled={zoom >= MOST_ZOOM} onClick={() => zoomTo(zoom * 2)}>
            +
          </button>
        </li>
      </ul>
      <div class="track" tabIndex={0} role="region" aria-label="Time line">
        <div class="lanes" ref={box} style={{ width: `calc(${NAME}px + ${zoom} * (100% - ${NAME}px))` }}>
          <Lanes lanes={lanes} box={box} whole={whole} zoom={zoom} turnOf={turnOf} current={current} onTurn={onTurn} />
        </div>
      </div>
    </div>
  );
}

function sumsOf(spans: Span[]) {
  return Object.entries(kinds)
    .map(([kind, [name, colour]]) => ({
      kind,
      name,
      colour,
      sum: spans.filter((span) => span.kind === kind).reduce((all, span) => all + span.end_s - span.start_s, 0),
    }))
    .filter(({ kind, sum }) => sum > 0 && kind !== "agent");
}

function Lanes(props: {
  lanes: Lane[];
  box: { current: HTMLDivElement | null };
  whole: number;
  zoom: number;
  turnOf: ReadonlyMap<string, Turn>;
  current: Turn;
  onTurn: (turn: Turn) => void;
}) {
  const { whole, turnOf, current } = props;
  const seen = useSeen(props.box);
  const { pixels_per_s, from_s, to_s } = view(seen, props.box.current?.clientWidth ?? 800, whole);
  let top = 0;
  return (
    <>
      <div class="axis" aria-hidden="true">
        {ticks(whole, props.zoom, from_s, to_s).map((at) => (
          <span key={at} style={{ left: `${(100 * at) / whole}%` }}>
            {seconds(at)}
          </span>
        ))}
      </div>
      {props.lanes.map((lane) => {
        const height = lane.rows.length * ROW;
        const isSeen = top <= seen.bottom && top + height + ROW * 2 >= seen.top;
        top += height + 9;
        return (
          <div class="lane" key={lane.name}>
            <b>{lane.name}</b>
            <div style={{ height: `${height}px` }}>
              {isSeen &&
                lane.rows.flatMap((row, at) =>
                  bars(row, pixels_per_s, from_s, to_s).map((bar) => (
                    <BarButton
                      key={`${at}-${bar.start_s}-${bar.spans[0]!.kind}`}
                      bar={bar}
                      top={at * ROW + 2}
                      whole={whole}
                      hasRoom={(bar.end_s - bar.start_s) * pixels_per_s > 60}
                      turnOf={turnOf}
                      current={current}
                      onTurn={props.onTurn}
                    />
                  )),
                )}
            </div>
          </div>
        );
      })}
    </>
  );
}

function BarButton(props: {
  bar: Bar;
  top: number;
  whole: number;
  hasRoom: boolean;
  turnOf: ReadonlyMap<string, Turn>;
  current: Turn;
  onTurn: (turn: Turn) => void;
}) {
  const { bar, whole, turnOf, current } = props;
  const long = (span: Span) => span.end_s - span.start_s;
  const span = bar.spans.reduce((most, each) => (long(each) > long(most) ? each : most));
  const error = bar.spans.find((each) => each.error)?.error;
  const turn = span.turn ? turnOf.get(span.turn) : undefined;
  const isNow = bar.spans.some((each) => each.turn === current.id);
  const [name, colour] = kinds[span.kind] ?? [span.kind, "quiet"];
  const others = bar.spans.length > 1 ? ` and ${plural(bar.spans.length - 1, "more", "more")} beside it` : "";
  const text = `${span.label || name}${turn ? `, turn ${turn.number}` : ""}: ${seconds(long(span))}, from ${seconds(span.start_s)}${others}${error ? `; ${error}` : ""}`;
  return (
    <button
      type="button"
      class={span.kind + (isNow ? " now" : "") + (error ? " failed" : "")}
      style={{
        left: `${(100 * bar.start_s) / whole}%`,
        width: `${(100 * (bar.end_s - bar.start_s)) / whole}%`,
        top: `${props.top}px`,
        background: `var(--${colour})`,
      }}
      title={text}
      aria-label={text}
      onClick={() => turn && props.onTurn(turn)}
    >
      {props.hasRoom ? span.label || name : ""}
    </button>
  );
}
