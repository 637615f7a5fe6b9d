/** A histogram that filters: draw over it with the pointer, or move its two handles with the arrow keys. */
import { useRef, useState } from "preact/hooks";
import { count, num } from "../format";
import { keyOf } from "../keys";

export function Histogram(props: {
  label: string;
  edges: number[];
  counts: number[];
  /** From the first of them on, and below the second. */
  range: [number | null, number | null];
  onRange: (range: [number | null, number | null]) => void;
}) {
  const { edges, counts } = props;
  const box = useRef<SVGSVGElement>(null);
  const [drawn, setDrawn] = useState<[number, number] | null>(null); // bins while the pointer is down
  const bins = counts.length;
  if (!bins)
    return (
      <p class="empty">
        No episode has a reward yet. It comes when an episode ends; one that fails has none, and says why in the list.
      </p>
    );
  const most = Math.max(...counts, 1);
  const first =
    props.range[0] === null
      ? 0
      : Math.max(
          0,
          edges.findIndex((edge) => edge >= props.range[0]! - 1e-9),
        );
  const last =
    props.range[1] === null ? bins - 1 : Math.max(0, edges.findLastIndex((edge) => edge <= props.range[1]! + 1e-9) - 1);
  const [from, to] = drawn ? [Math.min(...drawn), Math.max(...drawn)] : [first, last];
  const isAll = from === 0 && to === bins - 1;

  const binAt = (event: PointerEvent) => {
    const area = box.current!.getBoundingClientRect();
    return Math.min(bins - 1, Math.max(0, Math.floor((bins * (event.clientX - area.left)) / area.width)));
  };
  const choose = (a: number, b: number) =>
    props.onRange([a <= 0 ? null : edges[a]!, b >= bins - 1 ? null : edges[b + 1]!]);
  const handle = (which: 0 | 1) => {
    const at = which ? to : from;
    const value = edges[which ? at + 1 : at]!;
    return (
      <div
        role="slider"
        tabIndex={0}
        class="handle"
        aria-label={`${which ? `${props.label} below` : `least ${props.label}`}`}
        aria-valuemin={edges[0]}
        aria-valuemax={edges[bins]}
        aria-valuenow={value}
        aria-valuetext={num(value)}
        style={{ left: `${(100 * (at + which)) / bins}%` }}
        onKeyDown={(event) => {
          const key = keyOf(event) ?? "";
          const by = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[key];
          if (key === "Escape") props.onRange([null, null]);
          if (!by) return;
          event.preventDefault();
          event.stopPropagation();
          if (which) choose(from, Math.min(bins - 1, Math.max(from, to + by)));
          else choose(Math.max(0, Math.min(to, from + by)), to);
        }}
      />
    );
  };

  const [low, high] = [num(edges[from]), num(edges[to + 1])];
  const chosen = isAll
    ? `all ${props.label}s`
    : to === bins - 1
      ? `${low} and more`
      : from === 0
        ? `below ${high}`
        : `${low} to below ${high}`;

  return (
    <div class="histogram">
      <svg
        ref={box}
        viewBox={`0 0 ${bins * 10} 100`}
        preserveAspectRatio="none"
        role="img"
        aria-label={`${props.label} of ${count(counts.reduce((a, b) => a + b, 0))} episodes, from ${num(edges[0])} to ${num(edges[bins])}`}
        onPointerDown={(event) => {
          event.currentTarget.setPointerCapture(event.pointerId);
          setDrawn([binAt(event), binAt(event)]);
        }}
        onPointerMove={(event) => drawn && setDrawn([drawn[0], binAt(event)])}
        onPointerUp={() => {
          if (drawn) choose(from, to);
          setDrawn(null);
        }}
        onDblClick={() => props.onRange([null, null])}
      >
        {counts.map((number, bin) => (
          <rect
            key={bin}
            x={bin * 10 + 0.6}
            width={8.8}
            y={100 - (number && Math.max(2, (98 * number) / most))}
            height={number && Math.max(2, (98 * number) / most)}
            class={bin >= from && bin <= to ? "in" : "out"}
          >
            <title>{`${num(edges[bin])} to ${bin < bins - 1 ? "below " : ""}${num(edges[bin + 1])}: ${count(number)}`}</title>
          </rect>
        ))}
        <rect class="catch" x="0" y="0" width={bins * 10} height="100" />
      </svg>
      {handle(0)}
      {handle(1)}
      <div class="ends">
        <span>{num(edges[0])}</span>
        <span class="chosen">{chosen}</span>
        <span>{num(edges[bins])}</span>
      </div>
    </div>
  );
}
