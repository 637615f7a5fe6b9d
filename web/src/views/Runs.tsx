/** All runs of the folder. */
import { useEffect, useState } from "preact/hooks";
import { Empty, Missing, State } from "../parts/Basics";
import { Typed } from "../parts/Typed";
import { isReport, route, useGet } from "../data/source";
import type { RunRow } from "../data/types";
import { ago, count, num } from "../format";
import { useKeys } from "../keys";
import { go, links, setQuery, type Query } from "../router";

const REFRESH_S = 5;

export function Runs({ query }: { query: Query }) {
  const answer = useGet<{ runs: RunRow[] }>(route(["runs"]));
  const [chosen, setChosen] = useState<string[]>([]);
  const words = query.q ?? "";
  useEffect(() => {
    if (isReport || !answer.data) return;
    const timer = setTimeout(answer.reload, REFRESH_S * 1000);
    return () => clearTimeout(timer);
  }, [answer.data]);
  useKeys([
    {
      key: "c",
      does: "compare the two chosen runs",
      run: () => chosen.length === 2 && go(links.compare(chosen[0], chosen[1])),
    },
    { key: "/", does: "search", run: () => document.getElementById("words")?.focus() },
  ]);
  const runs = answer.data?.runs ?? [];
  const shown = runs.filter((run) => `${run.name} ${run.path}`.toLowerCase().includes(words.toLowerCase()));
  const choose = (id: string) =>
    setChosen((ids) => (ids.includes(id) ? ids.filter((each) => each !== id) : [...ids, id].slice(-2)));
  return (
    <>
      <div class="title">
        <h1>Runs</h1>
        <Typed
          id="words"
          type="search"
          placeholder="Name or path"
          aria-label="Search runs"
          value={words}
          onText={(q) => setQuery({ q })}
        />
        {chosen.length === 2 ? (
          <a class="button" href={links.compare(chosen[0], chosen[1])}>
            Compare the two
          </a>
        ) : (
          runs.length > 1 && <span class="faint">Choose two to compare them.</span>
        )}
      </div>
      <Missing of={answer} what="the list of runs" />
      {answer.data && !shown.length && (
        <Empty>
          {runs.length
            ? `None of the ${runs.length} runs has “${words}” in its name or folder. Empty the search to see all of them.`
            : "No run is in this folder yet. `ludus train` begins one, and it appears here within seconds."}
        </Empty>
      )}
      {shown.length > 0 && (
        <div class="scroll" tabIndex={0} role="region" aria-label="Runs">
          <table class="table runs">
            <thead>
              <tr>
                <th>
                  <span class="unseen">Chosen</span>
                </th>
                <th>Run</th>
                <th>State</th>
                <th class="num">Steps</th>
                <th class="num">Reward</th>
                <th class="num">Success</th>
                <th>Last change</th>
                <th class="path">Folder</th>
              </tr>
            </thead>
            <tbody>
              {shown.map((run) => (
                <tr key={run.id}>
                  <td>
                    <input
                      type="checkbox"
                      aria-label={`Choose ${run.name}`}
                      checked={chosen.includes(run.id)}
                      onChange={() => choose(run.id)}
                    />
                  </td>
                  <td>
                    <a href={links.run(run.id)}>{run.name}</a>
                  </td>
                  <td>
                    <State of={run.state} />
                  </td>
                  <td class="num">{count(run.num_steps)}</td>
                  <td class="num">{num(run.reward)}</td>
                  <td class="num">{num(run.success)}</td>
                  <td>{ago(run.updated_at)}</td>
                  <td class="path">{run.path}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </>
  );
}
