/** The conversation that leads to a turn, as the agent saw it. */
import type { ComponentChildren } from "preact";
import { differences } from "../data/diff";
import { chain, conversation } from "../data/turns";
import type { Episode, Message, Run, Turn } from "../data/types";
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

/** `beside`: another message; what this one has and that has not is marked. */
export function MessageText({ message, beside }: { message: Message; beside?: Message }) {
  const show = (text: string, other: string | null | undefined): ComponentChildren =>
    beside
      ? differences(text, other ?? "").map((piece, at) =>
          piece.same ? piece.text : <mark key={at}>{piece.text}</mark>,
        )
      : text;
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

export function Messages({ run, episode, turn }: { run: Run; episode: Episode; turn: Turn }) {
  const turns = chain(episode, turn);
  const tools = (turn.tools ?? []).map((tool) => (typeof tool === "string" ? tool : tool.name));
  return (
    <div class="messages">
      {tools.length > 0 && (
        <p class="offered faint">
          Tools offered:{" "}
          {tools.map((name) => (
            <code key={name}>{name}</code>
          ))}
        </p>
      )}
      <ol>
        {conversation(turns).map((line) => (
          <li
            key={line.key}
            class={"said " + (line.isReply ? "reply" : line.message.role) + (line.turn === turn ? " now" : "")}
          >
            <div class="who">
              <b>{line.message.name && line.message.role !== "tool" ? line.message.name : line.message.role}</b>
              {line.message.role === "tool" && line.message.name && <code>{line.message.name}</code>}
              <small>turn {line.turn.number}</small>
              {line.isReply && (
                <span class="links">
                  <a href={links.episode(run.id, episode.id, "tokens", { turn: line.turn.id })}>tokens</a>
                  {run.can_sample && <a href={links.branch(run.id, episode.id, line.turn.id)}>go back here</a>}
                </span>
              )}
            </div>
            <div class="what">
              <MessageText message={line.message} />
            </div>
          </li>
        ))}
      </ol>
    </div>
  );
}
