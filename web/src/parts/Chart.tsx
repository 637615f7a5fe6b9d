/** Curves over steps: several runs in one picture, smoothed over the raw values, evaluations as points. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { num } from "../format";
import { keyOf } from "../keys";
import { colour, onTheme } from "../theme";
import type { Num } from "../data/types";

export interface Curve {
  label: string;
  /** Name of a colour of the style sheet. */
  colour: string;
  steps: number[];
  values: Num[];
  kind: "line" | "points";
}

/** Exponential moving average that does not lean to its first value; null stays null. */
export function smooth(values: Num[], weight: number): Num[] {
  let [mean, norm] = [0, 0];
  return values.map((value) => {
    if (value === null || !Number.isFinite(value)) return value;
    mean = weight * mean + (1 - weight) * value;
    norm = weight * norm + (1 - weight);
    return mean / norm;
  });
}

interface Drawn {
  data: uPlot.AlignedData;
  series: uPlot.Series[];
  curves: Curve[];
}

function align(curves: Curve[], weight: number): Drawn {
  const steps = [...new Set(curves.flatMap((curve) => curve.steps))].sort((a, b) => a - b);
  const place = new Map(steps.map((step, at) => [step, at]));
  const data: (number | null | undefined)[][] = [steps];
  const series: uPlot.Series[] = [{}];
  const add = (curve: Curve, values: Num[], options: uPlot.Series) => {
    const row: (number | null | undefined)[] = new Array(steps.length).fill(undefined); // undefined: the line goes on
    curve.steps.forEach((step, at) => (row[place.get(step)!] = values[at]));
    data.push(row);
    series.push(options);
  };
  for (const curve of curves) {
    const stroke = colour(curve.colour);
    if (curve.kind === "points") {
      add(curve, curve.values, {
        stroke,
        width: 0,
        paths: () => null,
        points: { show: true, size: 7, width: 1.5, stroke, fill: colour("panel") },
      });
      continue;
    }
    if (weight) add(curve, curve.values, { stroke, width: 1, alpha: 0.28, points: { show: false } });
    add(curve, weight ? smooth(curve.values, weight) : curve.values, {
      stroke,
      width: 1.75,
      points: { show: curve.steps.length < 2, size: 5, fill: stroke },
    });
  }
  return { data: data as uPlot.AlignedData, series, curves };
}

/** As many decimals as tell two neighbours apart. */
function tickText(tick: number, by: number): string {
  if (tick !== 0 && (Math.abs(tick) >= 1e4 || by < 1e-4)) return num(tick, 2);
  return tick.toFixed(Math.max(0, Math.min(4, Math.ceil(-Math.log10(by) - 1e-9)))).replace("-", "−");
}

function options(drawn: Drawn, width: number, height: number, onCursor: (plot: uPlot) => void): uPlot.Options {
  const font = `11px ${getComputedStyle(document.body).fontFamily}`;
  const axis = { stroke: colour("muted"), font, ticks: { show: false }, grid: { stroke: colour("grid"), width: 1 } };
  return {
    width,
    height,
    series: drawn.series,
    legend: { show: false },
    padding: [8, 8, 0, 0],
    scales: { x: { time: false } },
    cursor: { sync: { key: "steps", setSeries: false }, drag: { x: true, y: false }, points: { size: 6 }, y: false },
    axes: [
      {
        ...axis,
        size: 22,
        gap: 2,
        space: 60,
        incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000],
        grid: { show: false },
      },
      {
        ...axis,
        size: 46,
        gap: 4,
        space: 32,
        values: (_, ticks, _axis, _space, by) => ticks.map((tick) => tickText(tick, by)),
      },
    ],
    hooks: { setCursor: [onCursor] },
  };
}

const lastOf = (values: Num[]) => values.findLast((value) => value !== null) ?? null;

function describe(title: string, curves: Curve[]): string {
  const parts = curves
    .filter((curve) => curve.steps.length)
    .map((curve) => {
      const known = curve.values.filter((value): value is number => value !== null);
      const [from, to] = [curve.steps[0], curve.steps.at(-1)];
      return `${curve.label}: steps ${from} to ${to}, from ${num(known[0])} to ${num(known.at(-1))}`;
    });
  return `${title}. ${parts.join("; ") || "No values yet."}`;
}

export function Chart(props: {
  title: string;
  curves: Curve[];
  smoothing?: number;
  height?: number;
  onStep?: (step: number) => void;
}) {
  const { title, curves, smoothing = 0, height = 150 } = props;
  const box = useRef<HTMLDivElement>(null);
  const legend = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const onStep = useRef(props.onStep);
  onStep.current = props.onStep;
  const shape =
    curves.map((curve) => [curve.label, curve.colour, curve.kind].join()).join() +
    (smoothing > 0) +
    ((curves[0]?.steps.length ?? 0) < 2);
  const drawn = useRef<{ curves: Curve[]; smoothing: number }>({ curves, smoothing });
  drawn.current = { curves, smoothing };

  const readout = (at: number | null) => {
    if (!legend.current) return;
    const step = at === null ? null : (plot.current?.data[0][at] ?? null);
    legend.current.replaceChildren(
      ...(step === null ? [] : [Object.assign(document.createElement("i"), { textContent: `step ${step}` })]),
      ...drawn.current.curves.map((curve) => {
        const found = step === null ? lastOf(curve.values) : (curve.values[curve.steps.indexOf(step)] ?? null);
        const span = document.createElement("span");
        span.style.setProperty("--c", `var(--${curve.colour})`);
        span.className = curve.kind;
        span.textContent = num(found);
        span.title = curve.label;
        return span;
      }),
    );
  };

  useEffect(() => {
    const element = box.current!;
    const make = () => {
      plot.current?.destroy();
      const { curves: now, smoothing: weight } = drawn.current;
      const ready = align(now, weight);
      const made = new uPlot(
        options(ready, element.clientWidth, height, (of) => readout(of.cursor.idx ?? null)),
        ready.data,
        element,
      );
      made.over.addEventListener("click", () => {
        const at = made.cursor.idx;
        if (at !== null && at !== undefined && !made.select.width) onStep.current?.(made.data[0][at]!);
      });
      plot.current = made;
      readout(null);
    };
    make();
    const watch = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height }));
    watch.observe(element);
    const off = onTheme(make);
    return () => {
      off();
      watch.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shape, height]);

  useEffect(() => {
    plot.current?.setData(align(curves, smoothing).data);
    readout(plot.current?.cursor.idx ?? null);
  }, [curves, smoothing]);

  const text = useMemo(() => describe(title, curves), [title, curves]);
  const steps = useMemo(() => [...new Set(curves.flatMap((curve) => curve.steps))].sort((a, b) => a - b), [curves]);
  const [place, setPlace] = useState<number | null>(null); // among the steps, where the arrow keys have come to
  const at = Math.min(place ?? steps.length - 1, steps.length - 1);
  const move = (to: number) => {
    const next = Math.max(0, Math.min(steps.length - 1, to));
    setPlace(next);
    plot.current?.setCursor({ left: plot.current.valToPos(steps[next]!, "x"), top: 0 });
  };
  const moves: Record<string, () => void> = {
    ArrowRight: () => move(at + 1),
    ArrowLeft: () => move(place === null ? at : at - 1),
    Home: () => move(0),
    End: () => move(steps.length - 1),
    Enter: () => props.onStep?.(steps[at]!),
  };
  const said = curves.map((curve) => `${curve.label} ${num(curve.values[curve.steps.indexOf(steps[at] ?? -1)])}`);
  return (
    <figure class="chart">
      <figcaption>
        <span class="name">{title}</span>
        <div class="readout" ref={legend} aria-hidden="true" />
      </figcaption>
      <div
        ref={box}
        role="slider"
        tabIndex={0}
        aria-label={`${text} Arrow keys go from step to step${props.onStep ? ", Enter opens one" : ""}.`}
        aria-valuemin={steps[0] ?? 0}
        aria-valuemax={steps.at(-1) ?? 0}
        aria-valuenow={steps[at] ?? 0}
        aria-valuetext={steps.length ? `step ${steps[at]}: ${said.join(", ")}` : "no values yet"}
        class={props.onStep ? "clickable" : ""}
        onKeyDown={(event) => {
          const act = steps.length ? moves[keyOf(event) ?? ""] : undefined;
          if (!act) return;
          event.preventDefault();
          act();
        }}
      />
    </figure>
  );
}

/** A curve as small as a word. */
export function Sparkline({ values, colour: name = "s1" }: { values: Num[]; colour?: string }) {
  const known = values
    .map((value, at) => [at, value] as const)
    .filter((pair): pair is readonly [number, number] => pair[1] !== null && Number.isFinite(pair[1]));
  if (known.length < 2) return null;
  const all = known.map(([, value]) => value);
  const [least, most] = [Math.min(...all), Math.max(...all)];
  const x = (at: number) => 1 + (98 * at) / Math.max(1, values.length - 1);
  const y = (value: number) => 19 - (17 * (value - least)) / (most - least || 1);
  return (
    <svg class="spark" viewBox="0 0 100 20" preserveAspectRatio="none" aria-hidden="true">
      <polyline
        points={known.map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join(" ")}
        stroke={`var(--${name})`}
        vector-effect="non-scaling-stroke"
      />
    </svg>
  );
}
