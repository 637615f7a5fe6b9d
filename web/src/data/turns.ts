/** The turns of an episode as a tree, and the conversation that leads to one of them. */
import type { Episode, Message, Turn } from "./types";

export interface Line {
  turn: Turn;
  message: Message;
  /** The model said it in this turn; else it was said to the model before. */
  isReply: boolean;
  key: string;
}

/** From the first turn to this one, along the tokens: each continues those before. */
export function chain(episode: Episode, turn: Turn): Turn[] {
  const of = new Map(episode.turns.map((each) => [each.id, each]));
  const found = new Set<Turn>();
  for (let at: Turn | undefined = turn; at && !found.has(at); at = at.prefix ? of.get(at.prefix) : undefined)
    found.add(at);
  return [...found].reverse();
}

export function conversation(turns: Turn[]): Line[] {
  return turns.flatMap((turn) => [
    ...turn.messages.map((message, at) => ({ turn, message, isReply: false, key: `${turn.id}-${at}` })),
    ...(turn.reply ? [{ turn, message: turn.reply, isReply: true, key: `${turn.id}-reply` }] : []),
  ]);
}

/** Turns that no other goes on from, in the order of their numbers. */
export function leaves(episode: Episode): Turn[] {
  const inner = new Set(episode.turns.flatMap((turn) => [turn.prefix, turn.follows]));
  return episode.turns.filter((turn) => !inner.has(turn.id));
}

export interface GraphRow {
  turn: Turn;
  lane: number;
  /** Row and lane of the turn whose tokens it goes on from. */
  prefix: { row: number; lane: number } | null;
  /** The turn whose consequence it is, where that is another one. */
  follows: { row: number; lane: number } | null;
}

/** One row a turn; a turn stays in the lane of what it continues, and a second continuation begins a lane of its own. */
export function graph(episode: Episode): { rows: GraphRow[]; lanes: number } {
  const turns = [...episode.turns].sort((a, b) => a.number - b.number);
  const place = new Map<string, { row: number; lane: number }>();
  const taken = new Set<string>(); // turns whose lane another turn goes on in
  let lanes = 0;
  const agentOf = new Map(turns.map((turn) => [turn.id, turn.agent]));
  const rows = turns.map((turn, row) => {
    const prefix = (turn.prefix && place.get(turn.prefix)) || null;
    const follows = (turn.follows && turn.follows !== turn.prefix && place.get(turn.follows)) || null;
    const from = turn.prefix ?? (turn.follows && agentOf.get(turn.follows) === turn.agent ? turn.follows : null);
    const lane = from && !taken.has(from) ? (place.get(from)?.lane ?? lanes++) : lanes++;
    if (from) taken.add(from);
    place.set(turn.id, { row, lane });
    return { turn, lane, prefix, follows };
  });
  return { rows, lanes: Math.max(1, lanes) };
}
