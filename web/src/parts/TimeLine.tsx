/** What happened when: a lane for each agent, model calls and tools as bars of their length. */
import { Empty } from "./Basics";
import { seconds } from "../format";
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

interface Lane {
  name: string;
  rows: Span[][];
}

/** Spans that overlap stand below each other; those of one model call stay in one row. */
function lanes(episode: Episode): Lane[] {
  const agentOf = new Map(episode.turns.map((turn) => [turn.id, turn.agent || "main"]));
  const found = new Map<string, Span[]>();
  for (const span of [...(episode.spans ?? [])].sort((a, b) => a.start_s - b.start_s)) {
    const name = span.kind === "agent" ? "agents" : ((span.turn && agentOf.get(span.turn)) ?? "main");
    found.set(name, [...(found.get(name) ?? []), span]);
  }
  return [...found].map(([name, spans]) => {
    const rows: Span[][] = [];
    for (const span of spans) {
      const free = rows.find((row) => row.at(-1)!.end_s <= span.start_s + 1e-6);
      if (free) free.push(span);
      else rows.push([span]);
    }
    return { name, rows };
  });
}

function ticks(whole: number): number[] {
  const rough = whole / 6;
  const power = 10 ** Math.floor(Math.log10(rough || 1));
  const by = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough)!;
  return Array.from({ length: Math.floor(whole / by) + 1 }, (_, at) => at * by);
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
  if (!spans.length)
    return (
      <Empty>
        No times are in this episode's record: it was written by another program, or ended before the model was called.
      </Empty>
    );
  const whole = spans.reduce((most, span) => Math.max(most, span.end_s), 1e-6);
  const sums = Object.entries(kinds)
    .map(([kind, [name, colour]]) => ({
      kind,
      name,
      colour,
      sum: spans.filter((span) => span.kind === kind).reduce((all, span) => all + span.end_s - span.start_s, 0),
    }))
    .filter(({ kind, sum }) => sum > 0 && kind !== "agent");
  const turnOf = new Map(episode.turns.map((turn) => [turn.id, turn]));
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
      </ul>
      <div class="lanes" role="region" aria-label="Time line" tabIndex={0}>
        <div class="axis" aria-hidden="true">
          {ticks(whole).map((at) => (
            <span key={at} style={{ left: `${(100 * at) / whole}%` }}>
              {seconds(at)}
            </span>
          ))}
        </div>
        {lanes(episode).map((lane) => (
          <div class="lane" key={lane.name}>
            <b>{lane.name}</b>
            <div style={{ height: `${lane.rows.length * ROW}px` }}>
              {lane.rows.flatMap((row, at) =>
                row.map((span, index) => {
                  const turn = span.turn ? turnOf.get(span.turn) : undefined;
                  const [name, colour] = kinds[span.kind] ?? [span.kind, "quiet"];
                  const text = `${span.label || name}${turn ? `, turn ${turn.number}` : ""}: ${seconds(span.end_s - span.start_s)}, from ${seconds(span.start_s)}${span.error ? `; ${span.error}` : ""}`;
                  return (
                    <button
                      type="button"
                      key={`${at}-${index}`}
                      class={span.kind + (turn === current ? " now" : "") + (span.error ? " failed" : "")}
                      style={{
                        left: `${(100 * span.start_s) / whole}%`,
                        width: `${(100 * (span.end_s - span.start_s)) / whole}%`,
                        top: `${at * ROW + 2}px`,
                        background: `var(--${colour})`,
                      }}
                      title={text}
                      aria-label={text}
                      onClick={() => turn && onTurn(turn)}
                    >
                      {(span.end_s - span.start_s) / whole > 0.08 ? span.label || name : ""}
                    </button>
                  );
                }),
              )}
            </div>
          </div>
        ))}
      </div>
    </div>
  );
}
