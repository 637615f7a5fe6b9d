/** One episode: its tree, and for the chosen turn the conversation, the time line, the prompt or the tokens. */
import { useEffect, useMemo } from "preact/hooks";
import { Messages } from "./Messages";
import { Prompt, Tokens } from "./Tokens";
import { Empty, Figure, Missing, Outcome, Panel, Tree } from "../parts/Basics";
import { TimeLine } from "../parts/TimeLine";
import { TurnGraph } from "../parts/TurnGraph";
import { holds, route, useGet } from "../data/source";
import { leaves } from "../data/turns";
import type { Episode, Run, Turn } from "../data/types";
import { ago, count, num, plural, reasonText, seconds, signed, visible } from "../format";
import { useKeys } from "../keys";
import { go, links, setQuery, type Query } from "../router";

const MOST_OTHERS = 40; // siblings, or attempts, that are shown beside each other

const tabs = [
  ["messages", "Messages", "m"],
  ["time", "Time line", "l"],
  ["prompt", "Prompt", "p"],
  ["tokens", "Tokens", "t"],
] as const;

export function EpisodeView({
  run,
  episode: id,
  tab,
  query,
}: {
  run: Run;
  episode: string;
  tab: string;
  query: Query;
}) {
  const answer = useGet<Episode>(route(["runs", run.id, "episodes", id]), false);
  const episode = answer.data;
  const place = tabs.some(([name]) => name === tab) ? tab : "messages";
  const toTab = (to: string) => links.episode(run.id, id, to, query);
  const turns = useMemo(() => [...(episode?.turns ?? [])].sort((a, b) => a.number - b.number), [episode]);
  const last = useMemo(() => episode && leaves(episode).at(-1), [episode]);
  const chosen = turns.find((each) => each.id === query.turn);
  const turn = chosen ?? last ?? turns.at(-1);
  const choose = (to: Turn | undefined) => to && setQuery({ turn: to.id, i: "" });
  const sibling = (by: number) => {
    const all = episode?.siblings ?? [];
    const next = all[all.findIndex((each) => each.id === id) + by];
    if (next) go(links.episode(run.id, next.id, tab, { by: query.by }));
  };
  useKeys([
    ...tabs.map(([name, text, key]) => ({ key, does: text.toLowerCase(), run: () => go(toTab(name)) })),
    { key: "]", does: "the next turn", run: () => turn && choose(turns[turns.indexOf(turn) + 1]) },
    { key: "[", does: "the turn before", run: () => turn && choose(turns[turns.indexOf(turn) - 1]) },
    { key: ")", does: "the next sibling of the group", run: () => sibling(1) },
    { key: "(", does: "the sibling before", run: () => sibling(-1) },
    ...(run.can_sample
      ? [{ key: "b", does: "go back to this turn and try", run: () => turn && go(links.branch(run.id, id, turn.id)) }]
      : []),
  ]);
  useEffect(() => {
    if (episode) document.title = `Ludus · ${run.name} · ${id}`;
  }, [episode]);
  return (
    <>
      <div class="title">
        <h1>{id}</h1>
        {episode && <Outcome kind={episode.outcome} />}
        {episode?.is_eval && <span class="tag">evaluation</span>}
        {episode?.group_id && <a href={links.group(run.id, episode.group_id)}>side by side</a>}
        {turn && run.can_sample && <a href={links.branch(run.id, id, turn.id)}>go back and try</a>}
      </div>
      <Missing of={answer} what="the episode" />
      {episode && <Head run={run} episode={episode} tab={tab} by={query.by} />}
      {episode && turn && (
        <div class="episode-body">
          <Panel title="Turns" class="turns" side={`${episode.turns.length}`}>
            <TurnGraph episode={episode} current={turn} onTurn={choose} />
          </Panel>
          <section class="panel content-panel" aria-label={`The turn: ${tabs.find(([name]) => name === place)?.[1]}`}>
            <nav class="tabs" aria-label="Parts of the episode">
              {tabs.map(([name, text]) => (
                <a key={name} href={toTab(name)} aria-current={name === place ? "page" : undefined}>
                  {text}
                </a>
              ))}
            </nav>
            <TurnFigures turn={turn} />
            {place === "messages" && <Messages run={run} episode={episode} turn={turn} isChosen={!!chosen} />}
            {place === "time" && <TimeLine episode={episode} current={turn} onTurn={choose} />}
            {place === "prompt" && (
              <Prompt run={run} episode={id} turn={turn} step={episode.step} query={query} key={turn.id} />
            )}
            {place === "tokens" && (
              <Tokens run={run} episode={id} turn={turn} step={episode.step} query={query} key={turn.id} />
            )}
          </section>
        </div>
      )}
      {episode && !turn && (
        <Empty>
          No turn is in this episode: it ended ({episode.outcome}) before its agent called the model.
          {episode.reason ? " The reason above says why." : ""}
        </Empty>
      )}
    </>
  );
}

function Head({ run, episode, tab, by }: { run: Run; episode: Episode; tab: string; by?: string }) {
  const more = { ...episode.metrics, ...episode.metadata };
  return (
    <>
      <dl class="figures small" aria-label="Key figures">
        <Figure label="Reward" value={num(episode.reward)} />
        <Figure label="Advantage" value={signed(episode.advantage_mean)} />
        <Figure
          label="Step"
          value={episode.step === null ? "–" : <a href={links.step(run.id, episode.step)}>{episode.step}</a>}
        />
        <Figure label="Task" value={episode.task_id ?? "–"} />
        <Figure label="Tokens" value={count(episode.num_tokens)} />
        <Figure label="Stale" value={count(episode.staleness_max)} />
        <Figure label="Ended" value={ago(episode.finished_at)} />
        <Others run={run} title="Siblings" of={episode.siblings} current={episode.id} tab={tab} by={by} />
        <Others run={run} title="Attempts" of={episode.attempts} current={episode.id} tab={tab} by={by} />
      </dl>
      {episode.reason && <p class="reason">{visible(episode.reason)}</p>}
      {Object.keys(more).length > 0 && (
        <details class="more">
          <summary>What the agent reported</summary>
          <Tree value={more} />
        </details>
      )}
    </>
  );
}

function Others(props: {
  run: Run;
  title: string;
  of: Episode["siblings"] | undefined;
  current: string;
  tab: string;
  by?: string;
}) {
  const { of = [], current } = props;
  if (of.length < 2) return null;
  const at = of.findIndex((each) => each.id === current);
  const from = Math.max(0, Math.min(at - MOST_OTHERS / 2, of.length - MOST_OTHERS));
  const near = of.slice(from, from + MOST_OTHERS);
  const isHere = (id: string) => holds(route(["runs", props.run.id, "episodes", id]));
  return (
    <div class="figure siblings-strip">
      <dt>{props.title}</dt>
      <dd>
        {near.map((each) => (
          <a
            key={each.id}
            href={isHere(each.id) ? links.episode(props.run.id, each.id, props.tab, { by: props.by }) : undefined}
            aria-current={each.id === current ? "page" : undefined}
            title={`${each.id}, ${each.outcome}`}
          >
            <Outcome kind={each.outcome} bare />
            {num(each.reward, 2)}
          </a>
        ))}
        {of.length > near.length && <small>{plural(of.length - near.length, "more", "more")}</small>}
      </dd>
    </div>
  );
}

function TurnFigures({ turn }: { turn: Turn }) {
  const versions =
    turn.version_min === turn.version_max ? count(turn.version_min) : `${turn.version_min}–${turn.version_max}`;
  const parts: [string, string][] = [
    ["turn", String(turn.number)],
    ["prompt", count(turn.num_prompt_tokens)],
    ["cached", turn.num_cached_tokens ? count(turn.num_cached_tokens) : "–"],
    ["sampled", count(turn.num_sampled_tokens)],
    ["temperature", num(turn.temperature)],
    ["return", num(turn.return)],
    ["advantage", signed(turn.advantage)],
    ["version", versions],
    ["first token after", turn.wait_s === null ? seconds(turn.until_first_s) : "–"],
    ["waited", seconds(turn.wait_s)],
    ["prefill", seconds(turn.prefill_s)],
    ["decode", seconds(turn.decode_s)],
    ["stop", turn.stop ?? "–"],
  ];
  return (
    <dl class="turn-figures">
      {parts
        .filter(([, value]) => value !== "–")
        .map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd class="num">{value}</dd>
          </div>
        ))}
      {turn.mask && (
        <div>
          <dt>masked</dt>
          <dd>{reasonText(turn.mask)}</dd>
        </div>
      )}
      {turn.fork && (
        <div>
          <dt>fork</dt>
          <dd>{visible([reasonText(turn.fork.reason), turn.fork.detail].filter(Boolean).join(": "))}</dd>
        </div>
      )}
    </dl>
  );
}
