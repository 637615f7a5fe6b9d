/** Where two texts differ, word by word. */
export interface Piece {
  text: string;
  /** In both texts. */
  same: boolean;
}

const MOST_CELLS = 1_000_000; // some milliseconds; between the ends that agree, longer texts are marked whole

const words = (text: string) => text.match(/\s+|[^\s\p{P}]+|\p{P}/gu) ?? [];

/** The pieces of `text`, marked by whether `other` has them in the same order (longest common subsequence). */
export function differences(text: string, other: string): Piece[] {
  if (text === other) return [{ text, same: true }];
  const [own, their] = [words(text), words(other)];
  let head = 0;
  while (head < own.length && head < their.length && own[head] === their[head]) head++;
  let tail = 0;
  while (tail < own.length - head && tail < their.length - head && own.at(-1 - tail) === their.at(-1 - tail)) tail++;
  const [a, b] = [own.slice(head, own.length - tail), their.slice(head, their.length - tail)];
  const kept = a.length * b.length > MOST_CELLS ? new Set<number>() : common(a, b);
  const pieces: Piece[] = [];
  const add = (word: string, same: boolean) => {
    const last = pieces.at(-1);
    if (last && last.same === same) last.text += word;
    else pieces.push({ text: word, same });
  };
  own.forEach((word, at) => add(word, at < head || at >= own.length - tail || kept.has(at - head)));
  return pieces;
}

/** Places of `a` that a longest common subsequence of `a` and `b` holds. */
function common(a: string[], b: string[]): Set<number> {
  const width = b.length + 1;
  const length = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      length[i * width + j] =
        a[i] === b[j]
          ? length[(i + 1) * width + j + 1]! + 1
          : Math.max(length[(i + 1) * width + j]!, length[i * width + j + 1]!);
  const kept = new Set<number>();
  for (let i = 0, j = 0; i < a.length && j < b.length; ) {
    if (a[i] === b[j]) {
      kept.add(i);
      i++;
      j++;
    } else if (length[(i + 1) * width + j]! >= length[i * width + j + 1]!) i++;
    else j++;
  }
  return kept;
}
