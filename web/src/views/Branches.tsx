/** What was tried from turns of this run's episodes, and the answers that came. */
import { useEffect, useState } from "preact/hooks";
import { ColouredTokens, Details } from "./Tokens";
import { Empty, Missing, Panel } from "../parts/Basics";
import { isReport, route, useGet } from "../data/source";
import type { Branch, Run, Token } from "../data/types";
import { num, plural } from "../format";
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
        <Empty>Nothing was tried yet. In an episode, “go back and try” begins a branch at any turn.</Empty>
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
                  <td>{each.model}</td>
                  <td>{each.edit ? `message ${each.edit.message_index + 1}` : "nothing"}</td>
                  <td>{each.state}</td>
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

function One({ run, id }: { run: Run; id: string }) {
  const answer = useGet<Branch>(route(["runs", run.id, "branches", id]));
  const [open, setOpen] = useState<number | null>(null);
  const branch = answer.data;
  const isRunning = branch !== null && !["finished", "failed", "done"].includes(branch.state);
  useEffect(() => {
    if (!isRunning || isReport) return;
    const timer = setTimeout(answer.reload, POLL_MS);
    return () => clearTimeout(timer);
  }, [branch]);
  return (
    <>
      <div class="title">
        <h1>Branch {id}</h1>
        {branch && <span class="tag">{branch.state}</span>}
        {branch && (
          <a href={links.episode(run.id, branch.from.episode, "messages", { turn: branch.from.turn })}>
            from {branch.from.episode}
          </a>
        )}
        {branch && <a href={links.branch(run.id, branch.from.episode, branch.from.turn)}>try again</a>}
      </div>
      <Missing of={answer} what="the branch" />
      {branch?.edit && (
        <Panel title={`Message ${branch.edit.message_index + 1} became`}>
          <div class="said user">{branch.edit.content}</div>
        </Panel>
      )}
      {branch && (
        <Panel title={`${plural(branch.samples.length, "answer")} of ${branch.model}`}>
          <ol class="samples">
            {branch.samples.map((sample, at) => (
              <li key={at}>
                <div class="who">
                  <b>{at + 1}</b>
                  {sample.reward !== null && <span class="num">{num(sample.reward)}</span>}
                  {sample.tokens && (
                    <button
                      type="button"
                      class="plain"
                      aria-expanded={open === at}
                      onClick={() => setOpen(open === at ? null : at)}
                    >
                      tokens
                    </button>
                  )}
                </div>
                {open === at && sample.tokens ? (
                  <SampleTokens tokens={sample.tokens} />
                ) : (
                  <div class="content">{sample.text}</div>
                )}
              </li>
            ))}
          </ol>
        </Panel>
      )}
    </>
  );
}

/** The tokens of an answer that is in the page already. */
export function SampleTokens({ tokens }: { tokens: Token[] }) {
  const [selected, setSelected] = useState(-1);
  const [by, setBy] = useState("logprob");
  const prompt = tokens.findIndex((token) => token.kind === "sampled");
  const [loaded] = useState({
    tokens,
    total: tokens.length,
    promptTotal: Math.max(0, prompt),
    isWhole: true,
    error: null,
  });
  return (
    <ColouredTokens loaded={loaded} by={by} onBy={setBy} selected={selected} onSelect={setSelected}>
      {tokens[selected] && <Details token={tokens[selected]} loaded={loaded} alternatives={null} />}
    </ColouredTokens>
  );
}
