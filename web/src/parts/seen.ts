/** Which part of something long can be seen, whatever it is that scrolls. */
import type { RefObject } from "preact";
import { useEffect, useLayoutEffect, useState } from "preact/hooks";

const STEP = 200; // pixels: what is seen is rounded outwards to them, so that it changes some times a second at most

/** In pixels of the element itself. */
export interface Seen {
  top: number;
  bottom: number;
  left: number;
  right: number;
}

function look(element: HTMLElement): Seen {
  const area = element.getBoundingClientRect();
  const before = (edge: number) => Math.max(0, Math.floor(-edge / STEP) * STEP);
  const after = (edge: number, whole: number) => Math.max(0, Math.ceil((whole - edge) / STEP) * STEP);
  return {
    top: before(area.top),
    bottom: after(area.top, innerHeight),
    left: before(area.left),
    right: after(area.left, innerWidth),
  };
}

/** The part of the element that is within the window. Boxes that scroll are within it too, so it is never too little. */
export function useSeen(box: RefObject<HTMLElement>): Seen {
  const [seen, setSeen] = useState<Seen>({ top: 0, bottom: 1000, left: 0, right: 2000 });
  useLayoutEffect(() => {
    const element = box.current!;
    const update = () =>
      setSeen((old) => {
        const now = look(element);
        return (Object.keys(now) as (keyof Seen)[]).every((side) => now[side] === old[side]) ? old : now;
      });
    const watch = new ResizeObserver(update); // it calls at once too
    watch.observe(element);
    const how = { capture: true, passive: true }; // events of scrolling do not bubble
    addEventListener("scroll", update, how);
    addEventListener("resize", update);
    return () => {
      watch.disconnect();
      removeEventListener("scroll", update, how);
      removeEventListener("resize", update);
    };
  }, []);
  return seen;
}

/** The box around the element that scrolls it up and down. null: the page does. */
function scrollerOf(element: HTMLElement): HTMLElement | null {
  for (let at = element.parentElement; at && at !== document.body; at = at.parentElement)
    if (at.scrollHeight > at.clientHeight + 1 && /auto|scroll/.test(getComputedStyle(at).overflowY)) return at;
  return null;
}

/** Scrolls to a part of the element that begins and ends there, if it is not seen. The page itself is left where it
 * is. */
export function bringInto(element: HTMLElement, top: number, bottom: number): void {
  const scroller = scrollerOf(element);
  if (!scroller) return;
  const y = element.getBoundingClientRect().top - scroller.getBoundingClientRect().top;
  if (y + top < 0 || y + bottom > scroller.clientHeight) scroller.scrollTop += y + top - 8;
}

/** Whether the page is being put on paper, where nothing scrolls. */
export function usePrinting(): boolean {
  const [is, setIs] = useState(false);
  useEffect(() => {
    const [begin, end] = [() => setIs(true), () => setIs(false)];
    addEventListener("beforeprint", begin);
    addEventListener("afterprint", end);
    return () => {
      removeEventListener("beforeprint", begin);
      removeEventListener("afterprint", end);
    };
  }, []);
  return is;
}

export const MOST_PRINTED = 200; // rows on paper, four pages of lists
