/** The frame: which view stands at this address, where one can go, and the keys that hold everywhere. */
import type { JSX } from "preact";
import { useEffect, useErrorBoundary, useRef, useState } from "preact/hooks";
import { Empty, Failed, State } from "./parts/Basics";
import { Help } from "./parts/Help";
import { Lost } from "./parts/Lost";
import { useLive, useRounds, wasRead } from "./data/live";
import { isReport, route, useGet, type Answer } from "./data/source";
import type { Run, RunState } from "./data/types";
import { useKeys } from "./keys";
import { asLeft, go, href, links, usePlace, type Place } from "./router";
import { toggle } from "./theme";
import { Branches } from "./views/Branches";
import { BranchForm } from "./views/BranchForm";
import { Chat } from "./views/Chat";
import { Compare } from "./views/Compare";
import { EpisodeView } from "./views/Episode";
import { Episodes } from "./views/Episodes";
import { Group } from "./views/Group";
import { Overview } from "./views/Overview";
import { Runs } from "./views/Runs";
import { Step } from "./views/Step";
import { Steps } from "./views/Steps";

const NOT_YET_MS = 2000;

const tabs: [string, string, (run: string) => string, string[]][] = [
  ["Overview", "o", links.run, [""]],
  ["Steps", "s", links.steps, ["steps", "step"]],
  ["Episodes", "e", links.episodes, ["episodes", "episode", "group"]],
  ["Branches", "b", (run) => links.branches(run), ["branches", "branch"]],
  ["Chat", "t", links.chat, ["chat"]],
];

// What needs a model is there where one can be asked; a report has branches, if there are any.
const shown = (run: Run | null) => (run?.can_sample ? tabs : tabs.slice(0, run?.num_branches ? 4 : 3));

function view({ parts, query }: Place, run: Run): JSX.Element {
  const [, , part = "", name = "", tab = ""] = parts;
  switch (part) {
    case "":
      return <Overview run={run} query={query} />;
    case "steps":
      return <Steps run={run} />;
    case "step":
      return <Step run={run} step={Number(name)} key={name} />;
    case "episodes":
      return <Episodes run={run} query={query} />;
    case "group":
      return <Group run={run} group={name} key={name} />;
    case "episode":
      return <EpisodeView run={run} episode={name} tab={tab} query={query} key={name} />;
    case "branches":
      return <Branches run={run} branch={name} />;
    case "branch":
      return <BranchForm run={run} query={query} key={query.episode + "/" + query.turn} />;
    case "chat":
      return <Chat run={run} query={query} />;
    default:
      return (
        <Empty>
          This link leads to “{part}”, and there is no such view. It may have been cut off, or be of another version of
          Ludus. <a href={links.run(run.id)}>The run's overview</a> leads to all views.
        </Empty>
      );
  }
}

function Header(props: {
  run: string | null;
  tabs: typeof tabs;
  name?: string;
  state: RunState | null;
  part: string;
  here: string;
  compare: string;
  isLive: boolean;
  onHelp: () => void;
  onSkip: () => void;
}) {
  const { run, part } = props;
  // where one is, the same link leads to all of it
  const to = (link: string) => (link === props.here ? link : asLeft(link));
  return (
    <header class="frame">
      <button type="button" class="skip" onClick={props.onSkip}>
        To the content
      </button>
      <a class="brand" href={links.runs()}>
        <svg viewBox="0 0 32 32" aria-hidden="true">
          <path d="M5 24 L12 17 L18 20 L26 8" />
          <circle cx="26" cy="8" r="3.2" />
        </svg>
        <span>
          Ludus<span class="unseen">, all runs</span>
        </span>
      </a>
      {run !== null && (
        <div class="where">
          <strong>{props.name ?? run}</strong>
          {props.state && <State of={props.state} />}
          {props.isLive && props.state === "running" && (
            <span class="live" role="status">
              live
            </span>
          )}
        </div>
      )}
      <nav aria-label="Views">
        {run === null ? (
          <a href={links.runs()} aria-current={part !== "compare" ? "page" : undefined}>
            Runs
          </a>
        ) : (
          props.tabs.map(([text, , link, parts]) => (
            <a key={text} href={to(link(run))} aria-current={parts.includes(part) ? "page" : undefined}>
              {text}
            </a>
          ))
        )}
        <a href={props.compare} aria-current={part === "compare" ? "page" : undefined}>
          Compare
        </a>
      </nav>
      <div class="tools">
        <button type="button" class="icon" onClick={toggle} aria-label="Dark or light" title="Dark or light (d)">
          ◐
        </button>
        <button type="button" class="icon" onClick={props.onHelp} aria-label="Keys" title="Keys (?)">
          ?
        </button>
      </div>
    </header>
  );
}

export function App() {
  const place = usePlace();
  const [help, setHelp] = useState(false);
  const [isLive, setLive] = useState(false);
  const [state, setState] = useState<RunState | null>(null);
  const main = useRef<HTMLElement>(null);
  const id = place.parts[0] === "run" ? (place.parts[1] ?? null) : null;
  const rounds = useRounds();
  const run = useGet<Run>(id === null ? null : route(["runs", id]), false, rounds.round);
  useLive(id, {
    state: setState,
    connected: setLive,
    missed: run.reload,
    step: (step, metrics) => {
      const known = run.data;
      if (known && Object.keys(metrics).some((name) => !known.metrics.includes(name)))
        run.reload(); // a curve more, to begin with
      else if (!known?.steps.includes(step)) rounds.more();
    },
  });
  useEffect(() => setState(null), [id]);
  useEffect(() => {
    if (id !== null && run.data) wasRead(id, run.data.position);
  }, [run.data]);
  useEffect(() => {
    if (run.status !== 404 || isReport) return; // it may not have begun yet
    const timer = setTimeout(run.reload, NOT_YET_MS);
    return () => clearTimeout(timer);
  }, [run]);
  const part = id === null ? (place.parts[0] ?? "") : (place.parts[2] ?? "");
  useEffect(() => {
    if (run.data) run.reload(); // while it trains there are more steps, and models that answer, in each view that opens
  }, [part]);
  const address = place.parts.join("/");
  useEffect(() => {
    document.title = ["Ludus", run.data?.name, place.parts[3] ?? part].filter(Boolean).join(" · ");
  }, [address, run.data?.name]);
  const seen = useRef(address);
  useEffect(() => {
    if (seen.current === address) return;
    seen.current = address;
    scrollTo(0, 0);
    // what had the focus is gone with the view before: Tab goes on from the content, not from the address of the page
    if (document.activeElement === document.body) main.current?.focus({ preventScroll: true });
  }, [address]);

  const toTab = (link: (run: string) => string) => () => (id !== null ? go(asLeft(link(id))) : undefined);
  const [first, second] = run.data?.evaluations ?? [];
  const compare = links.compare(id ?? undefined, undefined, second === undefined ? undefined : first);
  const [error, forget] = useErrorBoundary((problem) => console.error(problem));
  useEffect(() => forget(), [address]);
  useKeys([
    { key: "?", does: "this help", run: () => setHelp((is) => !is) },
    { key: "d", does: "dark or light", run: toggle },
    { key: "g r", does: "all runs", run: () => go(links.runs()) },
    { key: "g c", does: "compare", run: () => go(compare) },
    ...(id === null
      ? []
      : shown(run.data).map(([text, key, link]) => ({ key: "g " + key, does: text.toLowerCase(), run: toTab(link) }))),
    { key: "u", does: "one level up", run: () => go(up(place)) },
  ]);

  return (
    <>
      <Header
        onSkip={() => main.current?.focus()}
        run={id}
        tabs={shown(run.data)}
        name={run.data?.name}
        state={state ?? run.data?.state ?? null}
        part={part}
        here={href(place.parts)}
        compare={compare}
        isLive={isLive && !isReport}
        onHelp={() => setHelp(true)}
      />
      <main ref={main} tabIndex={-1} class={"view-" + (part || (id === null ? "runs" : "overview"))}>
        <Lost />
        {error ? (
          <Failed
            text={`This view broke: ${error}. The rest of the page works. If it breaks again, please report it with the text above and the run's version of Ludus.`}
            onRetry={forget}
          />
        ) : (
          <>
            {id === null ? part === "compare" ? <Compare query={place.query} /> : <Runs query={place.query} /> : null}
            {id !== null && run.data && <Damage of={run.data} />}
            {id !== null && run.data && view(place, run.data)}
            {run.error && !run.data && <NoRun id={id!} run={run} />}
            {id !== null && run.loading && (
              <p class="loading" role="status">
                Reading the run …
              </p>
            )}
          </>
        )}
      </main>
      {help && <Help onClose={() => setHelp(false)} />}
    </>
  );
}

/** One level up, as it was left: with its filters. */
function up({ parts }: Place): string {
  const [, run = "", part = ""] = parts;
  if (parts[0] !== "run" || part === "") return asLeft(links.runs());
  if (part === "episode" || part === "group") return asLeft(links.episodes(run));
  if (part === "step") return links.steps(run);
  if (parts.length > 3 || part === "branch") return links.branches(run);
  return asLeft(links.run(run));
}

function Damage({ of }: { of: Run }) {
  if (!of.damage.length) return null;
  return (
    <ul class="damage" role="alert">
      {of.damage.map((sentence) => (
        <li key={sentence}>{sentence}</li>
      ))}
    </ul>
  );
}

function NoRun({ id, run }: { id: string; run: Answer<Run> }) {
  if (run.status !== 404) return <Failed text={`The run cannot be shown: ${run.error}`} onRetry={run.reload} />;
  return (
    <div class="error" role="alert">
      <p>
        There is no run “{id}” here: {run.error}. If it is being started, it appears here as soon as it has begun; if
        not, its folder was renamed, moved or removed. <a href={links.runs()}>All runs</a> of the watched folder are
        listed.
      </p>
    </div>
  );
}
