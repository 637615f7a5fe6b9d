/** Talk to the model of a checkpoint, or to two side by side. */
import { useEffect, useRef, useState } from "preact/hooks";
import { SampleTokens } from "./Branches";
import { Empty } from "../parts/Basics";
import { newestModel, post, route } from "../data/source";
import { events } from "../data/stream";
import type { Run, Token } from "../data/types";
import { visible } from "../format";
import { keyOf } from "../keys";
import { setQuery, type Query } from "../router";

const MOST_MODELS = 2;

interface Said {
  role: "user" | "assistant";
  content: string;
  tokens?: Token[] | null;
}
interface Delta {
  delta?: string;
  done?: boolean;
  text?: string;
  tokens?: Token[] | null;
  detail?: string;
}
/** Each model has a conversation of its own: they part with the first answer. */
type Talks = Record<string, Said[]>;

function extended(talks: Talks, model: string, { delta, text, tokens }: Delta): Talks {
  const said = [...(talks[model] ?? [])];
  const last = said.at(-1)?.role === "assistant" ? said.pop()! : { role: "assistant" as const, content: "" };
  return {
    ...talks,
    [model]: [...said, { ...last, content: text ?? last.content + (delta ?? ""), tokens: tokens ?? last.tokens }],
  };
}

/** By which the server knows that an answer goes on with what was said. */
const newChat = () => crypto.getRandomValues(new Uint32Array(2)).join("-");

/** What was said with the models of each run: who looks at another view finds it again. */
const kept = new Map<string, { talks: Talks; chat: string }>();

export function Chat({ run, query }: { run: Run; query: Query }) {
  const known = (query.models ?? "").split(",").filter((name) => run.models.some((each) => each.name === name));
  const models = known.length ? known.slice(-MOST_MODELS) : run.models.length ? [newestModel(run)!.name] : [];
  const [talks, setTalks] = useState<Talks>(kept.get(run.id)?.talks ?? {});
  const [chat, setChat] = useState(kept.get(run.id)?.chat ?? newChat);
  const [text, setText] = useState("");
  const [most, setMost] = useState(256);
  const [temperature, setTemperature] = useState("");
  const [error, setError] = useState<string | null>(null);
  const [abort, setAbort] = useState<AbortController | null>(null);
  const field = useRef<HTMLTextAreaElement>(null);
  const label = (name: string) => run.models.find((each) => each.name === name)?.label ?? name;
  const toggle = (name: string) => {
    const chosen = models.includes(name) ? models.filter((each) => each !== name) : [...models, name];
    setQuery({ models: chosen.slice(-MOST_MODELS).join(",") });
  };
  kept.set(run.id, { talks, chat });
  useEffect(() => () => abort?.abort(), [abort]); // who leaves waits for no answer

  const send = async () => {
    if (!text.trim() || !models.length || abort) return;
    const control = new AbortController();
    const asked: Talks = Object.fromEntries(
      models.map((name) => [name, [...(talks[name] ?? []), { role: "user" as const, content: text }]]),
    );
    setTalks((old) => ({ ...old, ...asked }));
    setText("");
    setError(null);
    setAbort(control);
    const talk = async (name: string) => {
      const messages = asked[name]!.map(({ role, content }) => ({ role, content }));
      const response = await post(
        route(["runs", run.id, "chat"]),
        {
          models: [name],
          messages,
          max_tokens: most,
          temperature: temperature === "" ? null : Number(temperature),
          chat,
        },
        control.signal,
      );
      let isDone = false;
      for await (const event of events(response)) {
        const delta = event.data as Delta;
        if (delta.detail) throw new Error(delta.detail);
        isDone ||= !!delta.done;
        setTalks((old) => extended(old, name, delta));
      }
      if (!isDone) throw new Error("the connection broke off in the middle of the answer");
    };
    const failed = (await Promise.allSettled(models.map(talk))).find((each) => each.status === "rejected");
    if (failed && !control.signal.aborted)
      setError(
        `Not all was answered: ${(failed.reason as Error).message}. What was said stands; say it again to go on.`,
      );
    setAbort(null);
    field.current?.focus();
  };

  if (!run.models.length)
    return (
      <Empty>No model is here to talk to: the run's config names none, and no step was saved. {run.models_note}</Empty>
    );
  return (
    <div class="chat">
      <div class="title">
        <h1>Chat</h1>
        <div class="models" role="group" aria-label="Models, two at most">
          {run.models.map((each) => (
            <button
              type="button"
              key={each.name}
              aria-pressed={models.includes(each.name)}
              onClick={() => toggle(each.name)}
            >
              {each.label}
            </button>
          ))}
        </div>
        {Object.keys(talks).length > 0 && (
          <button type="button" class="plain" onClick={() => (setTalks({}), setChat(newChat()))}>
            Begin anew
          </button>
        )}
        {run.models_note && <span class="faint">{run.models_note}</span>}
      </div>
      <div class="talks">
        {models.map((name) => (
          <section class="panel talk" key={name} aria-label={label(name)} aria-live="polite">
            <header>
              <h2>{label(name)}</h2>
            </header>
            {(talks[name] ?? []).map((said, at) => (
              <Saying key={at} said={said} />
            ))}
            {!talks[name] && <p class="faint">Says nothing yet. Write to it below.</p>}
            {abort && talks[name]?.at(-1)?.role === "user" && (
              <p class="faint" role="status">
                Thinking; a model that was not asked before is loaded first …
              </p>
            )}
          </section>
        ))}
      </div>
      {error && (
        <p class="error" role="alert">
          {error}
        </p>
      )}
      <form
        class="say"
        onSubmit={(event) => {
          event.preventDefault();
          void send();
        }}
      >
        <textarea
          ref={field}
          rows={3}
          aria-label="Message"
          placeholder="Say something. Enter sends, Shift+Enter begins a line."
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (keyOf(event) !== "Enter" || event.shiftKey) return;
            event.preventDefault();
            void send();
          }}
        />
        <label>
          Tokens at most
          <input type="number" min="1" value={most} onInput={(event) => setMost(Number(event.currentTarget.value))} />
        </label>
        <label>
          Temperature
          <input
            type="number"
            min="0"
            max="2"
            step="0.1"
            placeholder="the run's"
            value={temperature}
            onInput={(event) => setTemperature(event.currentTarget.value)}
          />
        </label>
        {abort ? (
          <button type="button" onClick={() => abort.abort()}>
            Stop
          </button>
        ) : (
          <button type="submit" class="main" disabled={!text.trim() || !models.length}>
            Send
          </button>
        )}
      </form>
    </div>
  );
}

function Saying({ said }: { said: Said }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <div class={"said " + (said.role === "assistant" ? "reply" : "user")}>
      <div class="who">
        <b>{said.role}</b>
        {said.tokens && (
          <button type="button" class="plain" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
            tokens
          </button>
        )}
      </div>
      {isOpen && said.tokens ? (
        <SampleTokens tokens={said.tokens} />
      ) : (
        <div class="what content">{visible(said.content)}</div>
      )}
    </div>
  );
}
