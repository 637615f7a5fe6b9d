/** What was tried from turns of this run's episodes, and the answers that came. */
import { useEffect, useState } from "preact/hooks";
import { MessageText } from "./Messages";
import { ColouredTokens, Details } from "./Tokens";
import { Empty, Missing, Panel } from "../parts/Basics";
import { isReport, post, route, useGet } from "../data/source";
import type { Alternatives, Branch, Episode, Run, Sample, Token } from "../data/types";
import { ago, num, visible } from "../format";
import { links } from "../router";

const POLL_MS = 1000;

export function Branches({ run, branch }: { run: Run; branch: string }) {
  const answer = useGet<{ branches: Branch[] }>(branch ? null : route(["runs", run.id, "branches"]));
  if (branch) return <One run={run} id={branch} />;
  const branches = answer.data?.branches ?? [];
  return (
    <>
      <div class="title">
        <h1>Branches</h1>
      </div>
      <Missing of={answer} what="branches" />
      {answer.data && !branches.length && (
        <Empty>
          Nothing was tried yet. Open <a href={links.episodes(run.id)}>an episode</a>, choose a turn, and “go back and
          try” (b): change a message or none, and models answer again.
        </Empty>
      )}
      {branches.length > 0 && (
        <div class="scroll" tabIndex={0} role="region" aria-label="Branches">
          <table class="table">
            <thead>
              <tr>
                <th>Branch</th>
                <th>From</th>
                <th>Model</th>
                <th>Changed</th>
                <th>State</th>
                <th>When</th>
                <th class="num">Answers</th>
              </tr>
            </thead>
            <tbody>
              {branches.map((each) => (
                <tr key={each.id}>
                  <td>
                    <a href={links.branches(run.id, each.id)}>{each.id}</a>
                  </td>
                  <td>
                    <a href={links.episode(run.id, each.from.episode, "messages", { turn: each.from.turn })}>
                      {each.from.episode}
                    </a>
                  </td>
                  <td title={each.served_by ?? undefined}>
                    {each.model}
                    {each.served_by && <small class="faint"> served elsewhere</small>}
                  </td>
                  <td>{each.edit ? `message ${each.edit.message_index + 1}` : "nothing"}</td>
                  <td>{each.state}</td>
                  <td>{ago(each.created_at)}</td>
                  <td class="num">{each.samples?.length ?? 0}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </>
  );
}

/** One, and beside it what was answered at first and in the other branches of its turn. */
function One({ run, id }: { run: Run; id: string }) {
  const all = useGet<{ branches: Branch[] }>(route(["runs", run.id, "branches"]));
  const answer = useGet<Branch>(route(["runs", run.id, "branches", id]), false);
  const branch = answer.data;
  const from = branch?.from;
  const others = (all.data?.branches ?? []).filter(
    (each) => each.id !== id && each.from.episode === from?.episode && each.from.turn === from.turn,
  );
  return (
    <>
      <div class="title">
        <h1>Branch {id}</h1>
        {from && <a href={links.episode(run.id, from.episode, "messages", { turn: from.turn })}>from {from.episode}</a>}
        {from && run.can_sample && <a href={links.branch(run.id, from.episode, from.turn)}>try again</a>}
      </div>
      <Missing of={answer} what="the branch" />
      {all.error && <Missing of={all} what="the other branches of the turn" />}
      {branch && (
        <div class="sides">
          <AtFirst run={run} branch={branch} />
          {[id, ...others.map((each) => each.id)].map((each) => (
            <Column key={each} run={run} id={each} isThis={each === id} />
          ))}
        </div>
      )}
    </>
  );
}

function AtFirst({ run, branch }: { run: Run; branch: Branch }) {
  const { episode, turn: turnId } = branch.from;
  const answer = useGet<Episode>(route(["runs", run.id, "episodes", episode]));
  const turn = answer.data?.turns.find((each) => each.id === turnId);
  return (
    <Panel
      title="At first"
      side={<a href={links.episode(run.id, episode, "tokens", { turn: turnId })}>tokens</a>}
      label="What was answered at first"
    >
      <Missing of={answer} what="what was answered at first" />
      {turn && (
        <div class="first">
          <span class="faint num">reward {num(answer.data!.reward)}</span>
          {turn.reply && <MessageText message={turn.reply} />}
        </div>
      )}
    </Panel>
  );
}

const modelOf = (run: Run, { model, served_by }: Branch) =>
  served_by ? `${model} at ${served_by}` : (run.models.find((each) => each.name === model)?.label ?? model);

/** What an answer waits for before its first word. */
const beginning = (branch: Branch) => (branch.served_by ? "asking" : "loading");

function Column({ run, id, isThis }: { run: Run; id: string; isThis: boolean }) {
  const answer = useGet<Branch>(route(["runs", run.id, "branches", id]));
  const branch = answer.data;
  const isRunning = branch?.state === "running";
  useEffect(() => {
    if (!isRunning || isReport) return;
    const timer = setTimeout(answer.reload, POLL_MS);
    return () => clearTimeout(timer);
  }, [branch]);
  if (!branch) return <Missing of={answer} what={`branch ${id}`} />;
  return (
    <Panel
      title={modelOf(run, branch)}
      label={`Answers of ${modelOf(run, branch)}`}
      class={isThis ? "this" : ""}
      side={
        <>
          <span class="tag" role="status">
            {isRunning && !branch.samples.some((each) => each.text) ? beginning(branch) : branch.state}
          </span>{" "}
          {!isThis && <a href={links.branches(run.id, id)}>{id}</a>}
        </>
      }
    >
      {branch.error && (
        <p class="error" role="alert">
          {branch.error}
        </p>
      )}
      {branch.edit ? (
        <div class="edit">
          <small>message {branch.edit.message_index + 1} became</small>
          <div class="content">{visible(branch.edit.content)}</div>
        </div>
      ) : (
        <p class="faint">Nothing was changed.</p>
      )}
      <ol class="samples">
        {branch.samples.map((sample, at) => (
          <Answered key={at} run={run} branch={branch} at={at} sample={sample} onChange={answer.reload} />
        ))}
      </ol>
    </Panel>
  );
}

function Answered(props: { run: Run; branch: Branch; at: number; sample: Sample; onChange: () => void }) {
  const { run, branch, at, sample } = props;
  const [isOpen, setOpen] = useState(false);
  const [error, setError] = useState("");
  const choose = () =>
    post(route(["runs", run.id, "branches", branch.id, "chosen"]), { sample: at, chosen: !sample.chosen }).then(
      props.onChange,
      (problem: Error) => setError(problem.message),
    );
  return (
    <li>
      <div class="who">
        <b>{at + 1}</b>
        {sample.reward !== null && <span class="num">{num(sample.reward)}</span>}
        {sample.stop && sample.stop !== "stop" && <small>{sample.stop}</small>}
        {sample.tokens && (
          <button type="button" class="plain" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
            tokens<span class="unseen"> of answer {at + 1}</span>
          </button>
        )}
        {branch.state === "finished" && run.can_sample && (
          <button
            type="button"
            class="plain"
            aria-pressed={!!sample.chosen}
            title="ludus export RUN --demonstrations writes what is chosen as rows of supervised training"
            onClick={choose}
          >
            {sample.chosen ? "chosen" : "choose"}
            <span class="unseen"> answer {at + 1}</span>
          </button>
        )}
        {error && (
          <p class="error" role="alert">
            The choice was not kept: {error}
          </p>
        )}
      </div>
      {isOpen && sample.tokens ? (
        <SampleTokens tokens={sample.tokens} />
      ) : (
        <div class="what">
          {sample.reply ? (
            <MessageText message={sample.reply} />
          ) : (
            <div class="content">{visible(sample.text || "…")}</div>
          )}
        </div>
      )}
    </li>
  );
}

/** The tokens of an answer that is in the page already. */
export function SampleTokens({ tokens }: { tokens: (Token & Alternatives)[] }) {
  const prompt = tokens.findIndex((token) => token.kind === "sampled");
  const [selected, setSelected] = useState(prompt); // the answer is what one looks for
  const [by, setBy] = useState("logprob");
  const [loaded] = useState({
    tokens,
    total: tokens.length,
    promptTotal: Math.max(0, prompt),
    isWhole: true,
    error: null,
  });
  const token = tokens[selected];
  return (
    <ColouredTokens loaded={loaded} by={by} onBy={setBy} selected={selected} onSelect={setSelected}>
      {token && <Details token={token} loaded={loaded} alternatives={token.alternatives ? token : null} brief />}
    </ColouredTokens>
  );
}
