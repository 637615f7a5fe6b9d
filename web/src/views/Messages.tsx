/** The conversation that leads to a turn, as the agent saw it. */
import type { ComponentChildren } from "preact";
import { useMemo } from "preact/hooks";
import { differences } from "../data/diff";
import { chain, conversation, type Line } from "../data/turns";
import { Flow } from "../parts/Flow";
import type { Episode, Message, Run, Turn } from "../data/types";
import { visible } from "../format";
import { links } from "../router";

/** JSON with line breaks where it is long; text that is not JSON stays as it was sampled. */
function pretty(text: string): string {
  try {
    const indented = JSON.stringify(JSON.parse(text), null, 2);
    return indented.length > 80 ? indented : JSON.stringify(JSON.parse(text));
  } catch {
    return text;
  }
}

const PIECE = 4000; // characters: half of what a browser lays out at once

/** Parts of a long text, of which a browser lays out those that are seen. They end with a line, if there are lines. */
function pieces(text: string): string[] {
  const found: string[] = [];
  for (let from = 0, end = 0; from < text.length; from = end) {
    const most = from + 2 * PIECE;
    const line = text.lastIndexOf("\n", most - 1);
    const space = text.lastIndexOf(" ", most - 1);
    end = text.length <= most ? text.length : line > from ? line + 1 : space > from ? space + 1 : most;
    found.push(text.slice(from, end));
  }
  return found;
}

function Long({ text }: { text: string }) {
  if (text.length <= 2 * PIECE) return <>{text}</>;
  return (
    <>
      {pieces(text).map((piece, at) => (
        <span class="piece" key={at}>
          {piece}
        </span>
      ))}
    </>
  );
}

const textOf = (message: Message) =>
  [message.reasoning, message.content, ...(message.tool_calls ?? []).map((call) => pretty(call.arguments))]
    .filter(Boolean)
    .join("\n");

/** About how many pixels a message takes, which is set in a column of that width. */
export function heightOf(message: Message, width: number): number {
  const columns = Math.max(20, Math.min(96, width / 7));
  const lines = textOf(message)
    .split("\n")
    .reduce((sum, line) => sum + Math.max(1, Math.ceil(line.length / columns)), 0);
  return 20 + 19 * lines;
}

/** `beside`: another message; what this one has and that has not is marked. */
export function MessageText({ message, beside }: { message: Message; beside?: Message }) {
  const show = (text: string, other: string | null | undefined): ComponentChildren =>
    beside ? (
      differences(visible(text), visible(other ?? "")).map((piece, at) =>
        piece.same ? piece.text : <mark key={at}>{piece.text}</mark>,
      )
    ) : (
      <Long text={visible(text)} />
    );
  const calls = message.tool_calls ?? [];
  return (
    <>
      {message.reasoning && (
        <div class="reasoning">
          <small>thinking</small>
          {show(message.reasoning, beside?.reasoning)}
        </div>
      )}
      {message.content && <div class="content">{show(message.content, beside?.content)}</div>}
      {calls.map((call, at) => (
        <div class="call" key={at}>
          <b>{call.name}</b>
          <pre>{show(pretty(call.arguments), pretty(beside?.tool_calls?.[at]?.arguments ?? ""))}</pre>
        </div>
      ))}
      {!message.content && !message.reasoning && !calls.length && <div class="content faint">(empty)</div>}
    </>
  );
}

const WHO = 38; // pixels of who said it, and of the links below that
const LINKS = 16;

/** isChosen: somebody went to this very turn, so that it is scrolled to. */
export function Messages(props: { run: Run; episode: Episode; turn: Turn; isChosen: boolean }) {
  const { run, episode, turn } = props;
  const lines = useMemo(() => conversation(chain(episode, turn)), [episode, turn]);
  const tools = (turn.tools ?? []).map((tool) => (typeof tool === "string" ? tool : tool.name));
  return (
    <div class="messages" tabIndex={0} role="region" aria-label="Messages">
      {tools.length > 0 && (
        <p class="offered faint">
          Tools offered:{" "}
          {tools.map((name) => (
            <code key={name}>{name}</code>
          ))}
        </p>
      )}
      <Flow
        count={lines.length}
        of={[lines, run.can_sample]}
        guess={(at, width) => {
          const who = lines[at]!.isReply ? WHO + LINKS : WHO; // beside the message, or above it
          const said = lines[at]!.message;
          return width > 640 ? Math.max(who, heightOf(said, width - 150)) : heightOf(said, width) + who - 18;
        }}
        goTo={props.isChosen ? lines.findIndex((line) => line.turn === turn) : undefined}
        classOf={(at) => {
          const line = lines[at]!;
          return "said " + (line.isReply ? "reply" : line.message.role) + (line.turn === turn ? " now" : "");
        }}
        row={(at) => <Said run={run} episode={episode.id} line={lines[at]!} />}
      />
    </div>
  );
}

function Said({ run, episode, line }: { run: Run; episode: string; line: Line }) {
  const { message, turn } = line;
  return (
    <>
      <div class="who">
        <b>{message.name && message.role !== "tool" ? message.name : message.role}</b>
        {message.role === "tool" && message.name && <code>{message.name}</code>}
        <small>turn {turn.number}</small>
        {line.isReply && (
          <span class="links">
            <a href={links.episode(run.id, episode, "tokens", { turn: turn.id })}>tokens</a>
            {run.can_sample && <a href={links.branch(run.id, episode, turn.id)}>go back here</a>}
          </span>
        )}
      </div>
      <div class="what">
        <MessageText message={message} />
      </div>
    </>
  );
}
