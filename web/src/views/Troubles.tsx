/** Episodes that ended badly, by what ended them, and prompts that did not go on where the last one stopped. */
import { Missing, Outcome, Panel } from "../parts/Basics";
import { holds, route, useGet, type Answer } from "../data/source";
import type { FailuresFound, Fork, Run } from "../data/types";
import { count, plural, reasonText, visible } from "../format";
import { links } from "../router";

export function Troubles(props: { run: Run; failures: Answer<FailuresFound>; round: number }) {
  const { run } = props;
  const forked = useGet<{ forks: Fork[] }>(route(["runs", run.id, "forks"]), true, props.round);
  const [failures, forks] = [props.failures.data?.failures ?? [], forked.data?.forks ?? []];
  const isBroken = props.failures.error !== null || forked.error !== null;
  if (!failures.length && !forks.length && !isBroken) return null;
  return (
    <div class="troubles">
      {isBroken && <Missing of={props.failures} what="what ended badly" />}
      {isBroken && <Missing of={forked} what="the prompts that forked" />}
      {failures.length > 0 && (
        <Panel
          title="Ended badly"
          side={plural(
            failures.reduce((sum, each) => sum + each.count, 0),
            "episode",
          )}
        >
          <ul>
            {failures.map((each) => (
              <li key={each.outcome + each.reason}>
                <b class="num">{count(each.count)}</b>
                <div>
                  <Outcome kind={each.outcome} />{" "}
                  <span class="reason">{visible(each.reason || "no reason was given")}</span>{" "}
                  <ToEpisode run={run.id} id={each.first} text="the first" />{" "}
                  <a href={links.episodes(run.id, { outcome: each.outcome, eval: 0 })}>
                    all that ended as {each.outcome}
                  </a>
                  {each.trace && (
                    <details>
                      <summary>Traceback</summary>
                      <pre>{visible(each.trace)}</pre>
                    </details>
                  )}
                </div>
              </li>
            ))}
          </ul>
        </Panel>
      )}
      {forks.length > 0 && (
        <Panel title="Prompts that forked" side="they do not extend the tokens before">
          <ul>
            {forks.map((each) => (
              <li key={each.reason}>
                <b class="num">{count(each.num_turns)}</b>
                <div>
                  {reasonText(each.reason)}{" "}
                  {each.example && (
                    <ToEpisode run={run.id} id={each.example.episode} text={`turn ${each.example.number}`} />
                  )}
                  {each.example && (
                    <details>
                      <summary>Where the first of them did</summary>
                      <dl class="forked">
                        <dt>the model had seen</dt>
                        <dd>{visible(each.example.seen)}</dd>
                        <dt>it was shown</dt>
                        <dd>{visible(each.example.shown)}</dd>
                      </dl>
                    </details>
                  )}
                </div>
              </li>
            ))}
          </ul>
        </Panel>
      )}
    </div>
  );
}

function ToEpisode({ run, id, text }: { run: string; id: string; text: string }) {
  if (!holds(route(["runs", run, "episodes", id]))) return <small>{id}</small>;
  return (
    <a href={links.episode(run, id)}>
      {text}
      <span class="unseen"> in {id}</span>
    </a>
  );
}
