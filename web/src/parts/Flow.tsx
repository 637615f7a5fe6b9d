/** Rows of any height, of which only those near what is seen are in the page. They scroll with what they stand in. */
import { Component, type ComponentChildren } from "preact";
import { useLayoutEffect, useReducer, useRef } from "preact/hooks";
import { count as amount } from "../format";
import { bringInto, MOST_PRINTED, usePrinting, useSeen } from "./seen";

const MARGIN = 600; // pixels before and after what is seen: one may scroll so far between two frames
const FEW = 60; // so many rows are all in the page, where the browser's own search finds them

/** Where rows begin: those that were drawn are measured, the others guessed. */
class Heights {
  private known: number[] = [];
  private starts = [0]; // of the first rows; more are added when they are asked for

  constructor(
    readonly width: number,
    /** Of the rows as they are now. */
    public guess: (index: number, width: number) => number,
  ) {}

  /** Whether that changes where the rows after it begin. */
  set(index: number, height: number): boolean {
    const before = this.start(index + 1) - this.start(index);
    if (Math.abs(before - height) < 0.5) return false;
    this.known[index] = height;
    this.starts.length = index + 1;
    return true;
  }

  start(index: number): number {
    for (let at = this.starts.length - 1; at < index; at++) {
      const height = (this.known[at] ??= this.guess(at, this.width));
      this.starts.push(this.starts[at]! + height);
    }
    return this.starts[index]!;
  }

  /** The row of `count` that is there. */
  at(y: number, count: number): number {
    let [low, high] = [0, Math.max(0, count - 1)];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.start(middle) <= y) low = middle;
      else high = middle - 1;
    }
    return low;
  }
}

interface RowProps {
  index: number;
  of: unknown[];
  draw: (index: number) => ComponentChildren;
}

/** Drawn again only when its data are others: a message may be long. */
class Row extends Component<RowProps> {
  shouldComponentUpdate(next: RowProps): boolean {
    const { index, of } = this.props;
    return next.index !== index || next.of.length !== of.length || next.of.some((each, at) => each !== of[at]);
  }

  render({ index, draw }: RowProps) {
    return draw(index);
  }
}

export function Flow(props: {
  count: number;
  class?: string;
  /** What the rows show: another one of these draws them again. */
  of: unknown[];
  /** About the height of a row in pixels, in a list of that width. */
  guess: (index: number, width: number) => number;
  classOf: (index: number) => string;
  row: (index: number) => ComponentChildren;
  /** A row to scroll to, once for each. */
  goTo?: number;
}) {
  const { count } = props;
  const box = useRef<HTMLOListElement>(null);
  const seen = useSeen(box);
  const isPrinted = usePrinting();
  const heights = useRef<Heights>();
  const held = useRef<{ first: unknown; goTo?: number; focus: number | null }>({ first: undefined, focus: null });
  const [, redraw] = useReducer((number: number) => number + 1, 0);
  if (!heights.current || held.current.first !== props.of[0]) {
    heights.current = new Heights(box.current?.clientWidth ?? 800, props.guess);
    held.current = { first: props.of[0], focus: null };
  }
  const known = heights.current;
  known.guess = props.guess;

  const isFew = count <= FEW;
  const top = isFew || isPrinted ? 0 : known.at(seen.top - MARGIN, count);
  const last = isFew
    ? count - 1
    : isPrinted
      ? Math.min(count, MOST_PRINTED) - 1
      : known.at(seen.bottom + MARGIN, count);

  useLayoutEffect(() => {
    const element = box.current!;
    const rows = [...element.children].filter(
      (child): child is HTMLLIElement => "at" in (child as HTMLElement).dataset,
    );
    if (!isFew && element.clientWidth && element.clientWidth !== known.width) {
      heights.current = new Heights(element.clientWidth, props.guess);
      return redraw(0);
    }
    if (isFew || isPrinted) return seek(element, rows);
    const changed = rows.filter((row) => known.set(Number(row.dataset.at), row.getBoundingClientRect().height));
    if (changed.length) return redraw(0);
    seek(element, rows);
    const { focus } = held.current;
    if (focus === null || (focus >= top && focus <= last) || document.activeElement !== document.body) return;
    held.current.focus = null; // it was scrolled away; keys go on scrolling
    element.closest<HTMLElement>("[tabindex]")?.focus({ preventScroll: true });
  });

  const seek = (element: HTMLElement, rows: HTMLElement[]) => {
    const to = props.goTo;
    if (to === undefined || held.current.goTo === to) return;
    const row = rows.find((each) => Number(each.dataset.at) === to);
    const from = element.getBoundingClientRect().top;
    const y = row ? row.getBoundingClientRect().top - from : known.start(to);
    if (row) held.current.goTo = to; // else it comes when it is drawn
    bringInto(element, y, y + (row?.offsetHeight ?? 0));
  };

  const rows = [];
  for (let index = top; index <= last; index++)
    rows.push(
      <li
        key={index}
        class={props.classOf(index)}
        data-at={index}
        aria-setsize={isFew ? undefined : count}
        aria-posinset={isFew ? undefined : index + 1}
      >
        <Row index={index} of={props.of} draw={props.row} />
      </li>,
    );
  const space = (key: string, height: number) => (
    <li key={key} class="space" aria-hidden="true" style={{ height: `${height}px` }} />
  );
  return (
    <>
      <ol
        ref={box}
        class={props.class}
        onFocusIn={(event) => {
          const row = (event.target as HTMLElement).closest<HTMLElement>("[data-at]");
          held.current.focus = row ? Number(row.dataset.at) : null;
        }}
        onFocusOut={(event) => {
          if (event.relatedTarget) held.current.focus = null;
        }}
      >
        {!isFew && !isPrinted && space("before", known.start(top))}
        {rows}
        {!isFew && !isPrinted && space("after", known.start(count) - known.start(last + 1))}
      </ol>
      {isPrinted && count > last + 1 && (
        <p class="faint">
          The first {MOST_PRINTED} of {amount(count)}.
        </p>
      )}
    </>
  );
}
