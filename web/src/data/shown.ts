/** Bounds of filters, as numbers are shown: `ludus/runs/watch/shown.py` has the same rule for the server. */

/** The last digit that `num` of format.ts shows of a number of this size. */
function digit(value: number): number {
  const size = Math.abs(value);
  if (size >= 1e6) return 1e4;
  if (size >= 1e4) return 100;
  if (size >= 100) return 0.1;
  if (size >= 10) return 0.01;
  if (size >= 0.001) return 0.001;
  return 10 ** (Math.floor(Math.log10(size)) - 1);
}

/** The least value that is shown as `least` or more. */
export function shownFrom(least: number): number {
  if (Math.abs(least) < 1e-300) return least; // what is not 0 is never shown as 0
  const unit = digit(least);
  const shown = Math.ceil(least / unit - 1e-6) * unit;
  const from = shown - unit / 2;
  return digit(from) < unit ? shown - digit(from) / 2 : from; // below 10 there is a digit more than above it
}

/** The greatest value that is shown as `most` or less. */
export const shownTo = (most: number) => -shownFrom(-most);
