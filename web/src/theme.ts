/** Dark or light: as the machine has it, until the reader chooses. Charts are told, because a canvas has no style sheet. */
export type Theme = "light" | "dark";

const listeners = new Set<() => void>();
const machine = matchMedia("(prefers-color-scheme: dark)");
const stored = (): Theme | null => {
  try {
    return localStorage.getItem("ludus-theme") as Theme | null;
  } catch {
    return null; // a file:// page may have no storage
  }
};

export const theme = (): Theme => (document.documentElement.dataset.theme as Theme) ?? "light";

function set(to: Theme): void {
  document.documentElement.dataset.theme = to;
  listeners.forEach((call) => call());
}

export function start(): void {
  set(stored() ?? (machine.matches ? "dark" : "light"));
  machine.addEventListener("change", () => stored() ?? set(machine.matches ? "dark" : "light"));
  let before: Theme | null = null;
  addEventListener("beforeprint", () => {
    before = theme();
    set("light");
  });
  addEventListener("afterprint", () => before && set(before));
}

export function toggle(): void {
  const to = theme() === "dark" ? "light" : "dark";
  try {
    localStorage.setItem("ludus-theme", to);
  } catch {
    /* it then holds for this page only */
  }
  set(to);
}

export function onTheme(call: () => void): () => void {
  listeners.add(call);
  return () => void listeners.delete(call);
}

/** The value of a colour of the style sheet, for a canvas. */
export const colour = (name: string) =>
  getComputedStyle(document.documentElement)
    .getPropertyValue("--" + name)
    .trim();
