/** Go back to a turn, change what was said, and sample again from there. */
import { useState } from "preact/hooks";
import { heightOf, MessageText } from "./Messages";
import { Empty, Missing, Panel } from "../parts/Basics";
import { Flow } from "../parts/Flow";
import { newestModel, post, route, useGet } from "../data/source";
import type { Branch, Episode, Message, Run } from "../data/types";
import { plural } from "../format";
import { go, links, setQuery, type Query } from "../router";

export function BranchForm({ run, query }: { run: Run; query: Query }) {
  const { episode: id, turn: turnId } = query;
  const answer = useGet<Episode>(id ? route(["runs", run.id, "episodes", id]) : null, false);
  if (!id)
    return (
      <Empty>
        Here one goes back to a turn, and this link names no episode. Open{" "}
        <a href={links.episodes(run.id)}>an episode</a>, choose a turn, and press b.
      </Empty>
    );
  const turns = answer.data?.turns ?? [];
  const turn = turnId ? turns.find((each) => each.id === turnId) : turns[0];
  return (
    <>
      <div class="title">
        <h1>Go back and try</h1>
        <a href={links.episode(run.id, id, "messages", { turn: turnId })}>
          {id}, turn {turn?.number ?? ""}
        </a>
      </div>
      <Missing of={answer} what="the episode" />
      {answer.data && !turn && (
        <Empty>
          The episode has no {turnId ? `turn ${turnId}` : "turn"} to go back to; it may have been played again.{" "}
          <a href={links.episode(run.id, id)}>The episode</a> shows those that it has.
        </Empty>
      )}
      {answer.data && turn && !run.models.length && (
        <Empty>No model can answer here. {run.models_note ?? "Open the run with `ludus watch`."}</Empty>
      )}
      {answer.data && turn && run.models.length > 0 && (
        <Form run={run} episode={answer.data} turn={turn.id} query={query} />
      )}
    </>
  );
}

function Form({ run, episode, turn: turnId, query }: { run: Run; episode: Episode; turn: string; query: Query }) {
  const turn = episode.turns.find((each) => each.id === turnId)!;
  // What the model saw before it answered in this turn; the index counts these messages from the first.
  const told = useGet<{ messages: Message[] }>(
    route(["runs", run.id, "episodes", episode.id, "turns", turnId, "messages"]),
  );
  const before = told.data?.messages ?? [];
  const [edited, setEdited] = useState<number | null>(null);
  const [text, setText] = useState("");
  const number = Number(query.n ?? 4);
  const model = run.models.some((each) => each.name === query.model) ? query.model! : newestModel(run)!.name;
  const [error, setError] = useState<string | null>(null);
  const [isSent, setSent] = useState(false);
  const edit = (at: number | null) => {
    setEdited(at);
    setText(at === null ? "" : (before[at]?.content ?? ""));
  };
  const send = async (event: Event) => {
    event.preventDefault();
    setSent(true);
    setError(null);
    try {
      const change = edited === null ? null : { message_index: edited, content: text };
      const response = await post(route(["runs", run.id, "branches"]), {
        episode: episode.id,
        turn: turnId,
        edit: change,
        n: number,
        model,
      });
      const { branch } = (await response.json()) as { branch: string };
      go(links.branches(run.id, branch));
    } catch (problem) {
      setError((problem as Error).message);
      setSent(false);
    }
  };
  return (
    <form class="two branch-form" onSubmit={send}>
      <Panel title="What the model is told" side="choose a message to change it">
        <Missing of={told} what="the messages before this turn" />
        <Flow
          class="editable"
          count={before.length}
          of={[told.data, edited, text]}
          guess={(at, width) => heightOf(before[at]!, width > 640 ? width - 150 : width)}
          classOf={(at) => "said " + before[at]!.role + (at === edited ? " now" : "")}
          row={(at) => (
            <>
              <div class="who">
                <b>{before[at]!.role}</b>
                <button
                  type="button"
                  class="plain"
                  aria-pressed={at === edited}
                  onClick={() => edit(at === edited ? null : at)}
                >
                  {at === edited ? "as it was" : "change"}
                  <span class="unseen"> message {at + 1}</span>
                </button>
              </div>
              <div class="what">
                {at === edited ? (
                  <textarea
                    aria-label={`Message ${at + 1}`}
                    rows={Math.min(16, 2 + text.split("\n").length)}
                    value={text}
                    onInput={(event) => setText(event.currentTarget.value)}
                  />
                ) : (
                  <MessageText message={before[at]!} />
                )}
              </div>
            </>
          )}
        />
      </Panel>
      <div class="stack">
        <Panel title="Sample again">
          <div class="form">
            <label>
              With
              <select value={model} onChange={(event) => setQuery({ model: event.currentTarget.value })}>
                {run.models.map((each) => (
                  <option key={each.name} value={each.name}>
                    {each.label}
                  </option>
                ))}
              </select>
            </label>
            <label>
              Answers
              <input
                type="number"
                min="1"
                max="64"
                value={query.n ?? 4}
                onInput={(event) => setQuery({ n: event.currentTarget.value })}
              />
            </label>
            <button type="submit" class="main" disabled={isSent}>
              {isSent ? "Sampling …" : "Try"}
            </button>
            <p class="faint">Branches are kept beside the run and are never trained on by themselves.</p>
            {run.models_note && <p class="faint">{run.models_note}</p>}
            {error && (
              <p class="error" role="alert">
                {error}
              </p>
            )}
          </div>
        </Panel>
        <Panel title="What was answered">
          <div class="said reply">
            {turn.reply ? <MessageText message={turn.reply} /> : <span class="faint">Nothing was recorded.</span>}
          </div>
        </Panel>
        <Tried run={run} episode={episode.id} turn={turnId} />
      </div>
    </form>
  );
}

function Tried({ run, episode, turn }: { run: Run; episode: string; turn: string }) {
  const answer = useGet<{ branches: Branch[] }>(route(["runs", run.id, "branches"]));
  const from = (answer.data?.branches ?? []).filter((each) => each.from.episode === episode && each.from.turn === turn);
  if (answer.error) return <Missing of={answer} what="the earlier branches of this turn" />;
  if (!from.length) return null;
  return (
    <Panel title="Tried from here">
      <ul>
        {from.map((each) => (
          <li key={each.id}>
            <a href={links.branches(run.id, each.id)}>
              {each.model}, {plural(each.samples.length, "answer")}
            </a>{" "}
            <span class="faint">{each.edit ? `message ${each.edit.message_index + 1} changed` : "as it was"}</span>
          </li>
        ))}
      </ul>
    </Panel>
  );
}
