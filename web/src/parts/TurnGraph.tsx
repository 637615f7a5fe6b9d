/** The turns of an episode as a tree: one row a turn, forks to the side, with their reason. */
import { useRef } from "preact/hooks";
import { graph } from "../data/turns";
import type { Episode, Turn } from "../data/types";
import { count, reasonText, signed } from "../format";
import { keyOf } from "../keys";

const ROW = 30;
const LANE = 14;

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
  const { rows, lanes } = graph(episode);
  const list = useRef<HTMLDivElement>(null);
  const width = Math.min(10, lanes) * LANE + 8;
  const at = rows.findIndex((row) => row.turn === current);
  const move = (to: number) => {
    const row = rows[Math.max(0, Math.min(rows.length - 1, to))]!;
    onTurn(row.turn);
    list.current!.querySelectorAll<HTMLElement>("button")[rows.indexOf(row)]?.focus();
  };
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
      <svg width={width} height={rows.length * ROW} aria-hidden="true">
        {rows.map((row, index) => (
          <g key={row.turn.id}>
            {row.follows && <Edge from={row.follows} to={{ row: index, lane: row.lane }} kind="follows" />}
            {row.prefix && <Edge from={row.prefix} to={{ row: index, lane: row.lane }} kind="prefix" />}
          </g>
        ))}
        {rows.map((row, index) => (
          <circle
            key={row.turn.id}
            cx={x(row.lane)}
            cy={y(index)}
            r={row.turn === current ? 5.5 : 4}
            class={
              (row.turn.mask ? "masked" : "") + (row.turn.fork ? " fork" : "") + (row.turn === current ? " now" : "")
            }
          />
        ))}
      </svg>
      <div class="rows">
        {rows.map((row) => (
          <button
            type="button"
            key={row.turn.id}
            style={{ height: `${ROW}px` }}
            aria-pressed={row.turn === current}
            tabIndex={row.turn === current ? 0 : -1}
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
