/** Parts of a whole: one bar, or one a step. */
import { share } from "../format";
import { variable } from "../colour";

export interface Part {
  name: string;
  value: number;
  colour: string;
  text?: string;
  link?: string | null;
}

export function PartsBar({ label, parts }: { label: string; parts: Part[] }) {
  const whole = parts.reduce((sum, part) => sum + part.value, 0);
  return (
    <div class="parts">
      <div
        class="bar"
        role="img"
        aria-label={`${label}: ${parts.map((part) => `${part.name} ${share(part.value, whole)}`).join(", ")}`}
      >
        {parts.map(
          (part) =>
            part.value > 0 && (
              <i
                key={part.name}
                style={{ flexGrow: part.value, background: variable(part.colour) }}
                title={`${part.name}: ${share(part.value, whole)}`}
              />
            ),
        )}
      </div>
      <ul>
        {parts.map((part) => (
          <li key={part.name}>
            <i style={{ background: variable(part.colour) }} aria-hidden="true" />
            {part.link ? <a href={part.link}>{part.name}</a> : <span>{part.name}</span>}
            <b class="num">{part.text}</b>
            <small class="num">{share(part.value, whole)}</small>
          </li>
        ))}
      </ul>
    </div>
  );
}

/** One thin column a step, parts stacked: how the whole changed. At most 120 columns; more are put together. */
export function StackedSteps({
  label,
  steps,
  rows,
}: {
  label: string;
  steps: number[];
  rows: { name: string; colour: string; values: (number | null)[] }[];
}) {
  if (steps.length < 2) return null;
  const each = Math.ceil(steps.length / 120);
  const columns = Array.from({ length: Math.ceil(steps.length / each) }, (_, at) =>
    rows.map((row) =>
      row.values.slice(at * each, at * each + each).reduce<number>((sum, value) => sum + (value ?? 0), 0),
    ),
  );
  const most = Math.max(...columns.map((column) => column.reduce((a, b) => a + b, 0)), 1e-9);
  return (
    <svg
      class="stacked"
      viewBox={`0 0 ${columns.length * 10} 100`}
      preserveAspectRatio="none"
      role="img"
      aria-label={`${label}, steps ${steps[0]} to ${steps.at(-1)}`}
    >
      {columns.map((column, at) => {
        let top = 100;
        return column.map((value, which) => {
          const height = (100 * value) / most;
          top -= height;
          return (
            height > 0.2 && (
              <rect
                key={`${at}-${which}`}
                x={at * 10 + 0.5}
                width={9}
                y={top}
                height={height}
                fill={variable(rows[which]!.colour)}
              />
            )
          );
        });
      })}
    </svg>
  );
}
