/** A whole text as a strip of colour, so that one sees where something is, and goes there by pointing. */
import { useEffect, useRef } from "preact/hooks";
import type { Loaded, Scale } from "../data/tokens";
import { colour, onTheme } from "../theme";

/** Of the tokens of each column the value that is furthest from 0; null where nothing is known. */
function columns(loaded: Loaded, scale: Scale, width: number): (number | null)[] {
  const found: (number | null)[] = new Array(width).fill(null);
  const total = Math.max(1, loaded.total);
  loaded.tokens.forEach((token, at) => {
    const value = token.kind === "sampled" ? scale.of(token) : null;
    if (value === null) return;
    const [from, to] = [
      Math.floor((at * width) / total),
      Math.max(Math.floor(((at + 1) * width) / total) - 1, Math.floor((at * width) / total)),
    ];
    for (let column = from; column <= to; column++) {
      if (Math.abs(value) >= Math.abs(found[column] ?? 0)) found[column] = value;
    }
  });
  return found;
}

function draw(element: HTMLCanvasElement, loaded: Loaded, scale: Scale): void {
  const width = (element.width = Math.round(element.clientWidth * devicePixelRatio));
  const height = (element.height = Math.round(element.clientHeight * devicePixelRatio));
  const context = element.getContext("2d")!;
  const [plus, minus, heat, ground] = ["plus", "minus", "heat", "line"].map(colour);
  columns(loaded, scale, width).forEach((value, column) => {
    const size = value === null ? 0.12 : 0.2 + 0.8 * Math.abs(value);
    context.globalAlpha = value === null ? 0.5 : 0.15 + 0.85 * Math.abs(value);
    context.fillStyle = value === null ? ground! : scale.signed ? (value < 0 ? minus! : plus!) : heat!;
    context.fillRect(column, height * (1 - size), 1, height * size);
  });
}

export function TokenStrip(props: { loaded: Loaded; scale: Scale; selected: number; onSelect: (at: number) => void }) {
  const { loaded, scale, selected } = props;
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    const redraw = () => draw(canvas.current!, loaded, scale);
    const watch = new ResizeObserver(redraw); // it calls at once too
    watch.observe(canvas.current!);
    const off = onTheme(redraw);
    return () => {
      off();
      watch.disconnect();
    };
  }, [loaded, scale]);
  return (
    <div
      class="token-strip"
      aria-hidden="true"
      onClick={(event) => {
        const area = event.currentTarget.getBoundingClientRect();
        props.onSelect(Math.floor((loaded.total * (event.clientX - area.left)) / area.width));
      }}
    >
      <canvas ref={canvas} />
      {selected >= 0 && <i style={{ left: `${(100 * (selected + 0.5)) / Math.max(1, loaded.total)}%` }} />}
    </div>
  );
}
