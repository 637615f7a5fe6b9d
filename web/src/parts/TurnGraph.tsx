/** The turns of an episode as a tree: one row a turn, forks to the side, with their reason. Those that are seen are drawn. */
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { bringInto, usePrinting, useSeen } from "./seen";
import { graph, type GraphRow } from "../data/turns";
import type { Episode, Turn } from "../data/types";
import { count, reasonText, signed } from "../format";
import { keyOf } from "../keys";

const ROW = 30;
const LANE = 14;
const MOST_LANES = 10; // those after them are beside the picture
const AROUND = 8; // rows before and after those that are seen

const x = (lane: number) => 10 + lane * LANE;
const y = (row: number) => row * ROW + ROW / 2;

function Edge({
  from,
  to,
  kind,
}: {
  from: { row: number; lane: number };
  to: { row: number; lane: number };
  kind: "prefix" | "follows";
}) {
  const [x0, y0, x1, y1] = [x(from.lane), y(from.row), x(to.lane), y(to.row)];
  // It leaves at once for its own lane, where nothing else stands before it.
  const path =
    x0 === x1
      ? `M${x0} ${y0}V${y1}`
      : `M${x0} ${y0}C${x0} ${y0 + ROW * 0.7} ${x1} ${y0 + ROW * 0.3} ${x1} ${y0 + ROW}V${y1}`;
  return <path d={path} class={kind} />;
}

export function TurnGraph({
  episode,
  current,
  onTurn,
}: {
  episode: Episode;
  current: Turn;
  onTurn: (turn: Turn) => void;
}) {
  const { rows, lanes } = useMemo(() => graph(episode), [episode]);
  const list = useRef<HTMLDivElement>(null);
  const wantsFocus = useRef(false);
  const seen = useSeen(list);
  const isPrinted = usePrinting();
  const first = isPrinted ? 0 : Math.max(0, Math.floor(seen.top / ROW) - AROUND);
  const last = isPrinted ? rows.length - 1 : Math.min(rows.length - 1, Math.ceil(seen.bottom / ROW) + AROUND);
  const drawn = rows.slice(first, last + 1);
  const width = Math.min(MOST_LANES, lanes) * LANE + 8;
  const at = rows.findIndex((row) => row.turn === current);
  useLayoutEffect(() => bringInto(list.current!, at * ROW, (at + 1) * ROW), [current]);
  useLayoutEffect(() => {
    const row = wantsFocus.current && list.current!.querySelector<HTMLElement>("button[aria-pressed=true]");
    if (!row) return;
    row.focus({ preventScroll: true });
    wantsFocus.current = false; // else the row is drawn when it has been scrolled to
  });
  const move = (to: number) => {
    const { turn } = rows[Math.max(0, Math.min(rows.length - 1, to))]!;
    wantsFocus.current = turn !== current;
    onTurn(turn);
  };
  const stop = at >= first && at <= last ? at : first; // for Tab, which finds only what is drawn
  /** Whether an edge crosses what is drawn; those to lanes that are not seen are short, or not seen. */
  const crosses = (from: GraphRow["prefix"], to: number, lane: number) =>
    from !== null && to >= first && (lane < MOST_LANES ? from.row <= last : to <= last);
  return (
    <div
      class="graph"
      ref={list}
      role="group"
      aria-label="Turns"
      onKeyDown={(event) => {
        const by = (
          { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, Home: -rows.length, End: rows.length } as Record<string, number>
        )[keyOf(event) ?? ""];
        if (!by) return;
        event.preventDefault();
        move(at + by);
      }}
    >
      <svg
        width={width}
        height={drawn.length * ROW}
        viewBox={`0 ${first * ROW} ${width} ${drawn.length * ROW}`}
        style={{ marginTop: `${first * ROW}px` }}
        aria-hidden="true"
      >
        {rows.map(
          ({ turn, lane, follows, prefix }, index) =>
            (crosses(follows, index, lane) || crosses(prefix, index, lane)) && (
              <g key={turn.id}>
                {follows && <Edge from={follows} to={{ row: index, lane }} kind="follows" />}
                {prefix && <Edge from={prefix} to={{ row: index, lane }} kind="prefix" />}
              </g>
            ),
        )}
        {drawn.map((row, index) => (
          <circle
            key={row.turn.id}
            cx={x(row.lane)}
            cy={y(first + index)}
            r={row.turn === current ? 5.5 : 4}
            class={
              (row.turn.mask ? "masked" : "") + (row.turn.fork ? " fork" : "") + (row.turn === current ? " now" : "")
            }
          />
        ))}
      </svg>
      <div class="rows" style={{ paddingTop: `${first * ROW}px`, height: `${rows.length * ROW}px` }}>
        {drawn.map((row, index) => (
          <button
            type="button"
            key={row.turn.id}
            style={{ height: `${ROW}px` }}
            aria-pressed={row.turn === current}
            tabIndex={first + index === stop ? 0 : -1}
            onClick={() => onTurn(row.turn)}
          >
            <b class="num">
              <span class="unseen">turn </span>
              {row.turn.number}
            </b>
            <span class="agent">{row.turn.agent || "main"}</span>
            {row.turn.fork && <span class="unseen">, fork:</span>}
            {row.turn.fork && (
              <em class="fork" title={row.turn.fork.detail ?? undefined}>
                {reasonText(row.turn.fork.reason)}
              </em>
            )}
            {row.turn.mask ? (
              <em class="mask" title="masked">
                <span class="unseen">, masked: </span>
                {reasonText(row.turn.mask)}
              </em>
            ) : (
              <span class="num adv" title="advantage">
                <span class="unseen">, advantage </span>
                {signed(row.turn.advantage, 2)}
              </span>
            )}
            <small class="num">
              {count(row.turn.num_sampled_tokens)}
              <span class="unseen"> tokens</span>
            </small>
          </button>
        ))}
      </div>
    </div>
  );
}
