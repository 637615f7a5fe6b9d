/** Colours that also a colour-blind reader tells apart (Okabe and Ito), by name of the style sheet. */
export const series = ["s1", "s2", "s3", "s4", "s5", "s6"];

export const outcomeColour: Record<string, string> = {
  ok: "ok",
  rejected: "rejected",
  failed: "failed",
  timeout: "timeout",
  truncated: "truncated",
  cancelled: "quiet",
  lost: "quiet",
};
/** Each outcome has a sign too, so that no meaning hangs on a colour alone. */
export const outcomeSign: Record<string, string> = {
  ok: "●",
  rejected: "◐",
  failed: "✕",
  timeout: "◷",
  truncated: "▤",
  cancelled: "○",
  lost: "?",
};

export const variable = (name: string) => `var(--${name})`;
