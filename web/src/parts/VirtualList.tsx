/** A list of which only what is seen is in the page: 10^5 rows cost what 50 cost. Arrow keys, j and k walk through it. */
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { count as amount } from "../format";
import { keyOf, useKeys } from "../keys";
import { MOST_PRINTED, usePrinting } from "./seen";

export function VirtualList(props: {
  label: string;
  count: number;
  rowHeight: number;
  class?: string;
  style?: { height: string };
  /** The row that has the focus, or would have. */
  current: number;
  onCurrent: (index: number) => void;
  /** Called with the rows that are seen, so that their data can be asked for. */
  onRange?: (first: number, last: number) => void;
  /** A row; `focus` belongs on the one element in it that takes the focus. */
  row: (index: number, focus: { tabIndex: number; "data-row": number }) => ComponentChildren;
}) {
  const { count, rowHeight, current } = props;
  const box = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  const wantsFocus = useRef(false);

  useLayoutEffect(() => {
    const element = box.current!;
    const watch = new ResizeObserver(() => setHeight(element.clientHeight));
    watch.observe(element);
    return () => watch.disconnect();
  }, []);

  const isPrinted = usePrinting();
  const first = isPrinted ? 0 : Math.max(0, Math.floor(top / rowHeight) - 8);
  const last = Math.min(count - 1, isPrinted ? MOST_PRINTED - 1 : Math.ceil((top + height) / rowHeight) + 8);
  useEffect(() => props.onRange?.(first, last), [first, last, count]);

  const focusOn = (index: number) => {
    const found = box.current!.querySelector<HTMLElement>(`[data-row="${index}"]`);
    wantsFocus.current = !found; // it is not drawn yet
    found?.focus({ preventScroll: true });
  };
  useLayoutEffect(() => {
    if (wantsFocus.current) focusOn(current);
  });

  const move = (to: number) => {
    const index = Math.max(0, Math.min(count - 1, to));
    const element = box.current!;
    const y = index * rowHeight;
    if (y < element.scrollTop) element.scrollTop = y;
    else if (y + rowHeight > element.scrollTop + element.clientHeight)
      element.scrollTop = y + rowHeight - element.clientHeight;
    setTop(element.scrollTop);
    props.onCurrent(index);
    focusOn(index);
  };
  const isFocused = () => box.current!.contains(document.activeElement) && document.activeElement !== box.current;
  useKeys([
    { key: "j", does: "the next row", run: () => move(isFocused() ? current + 1 : current) },
    { key: "k", does: "the row before", run: () => move(isFocused() ? current - 1 : current) },
  ]);
  const page = Math.max(1, Math.floor(height / rowHeight) - 1);
  const steps: Record<string, number> = {
    ArrowDown: 1,
    ArrowUp: -1,
    PageDown: page,
    PageUp: -page,
    Home: -count,
    End: count,
  };

  const rows = [];
  for (let index = first; index <= last; index++) {
    const focus = { tabIndex: index === Math.min(current, count - 1) ? 0 : -1, "data-row": index };
    rows.push(
      <div
        role="listitem"
        key={index}
        aria-setsize={count}
        aria-posinset={index + 1}
        style={{ top: `${index * rowHeight}px`, height: `${rowHeight}px` }}
      >
        {props.row(index, focus)}
      </div>,
    );
  }
  return (
    <div
      ref={box}
      class={"virtual " + (props.class ?? "")}
      style={props.style}
      onScroll={(event) => setTop(event.currentTarget.scrollTop)}
      tabIndex={-1}
      onKeyDown={(event) => {
        const by = steps[keyOf(event) ?? ""];
        if (by === undefined || !count) return;
        event.preventDefault();
        move(isFocused() ? current + by : current);
      }}
    >
      <div
        role="list"
        aria-label={props.label}
        style={{ height: `${(isPrinted ? Math.min(count, MOST_PRINTED) : count) * rowHeight}px` }}
      >
        {rows}
      </div>
      {isPrinted && count > MOST_PRINTED && (
        <p class="faint">
          The first {MOST_PRINTED} of {amount(count)} rows.
        </p>
      )}
    </div>
  );
}
