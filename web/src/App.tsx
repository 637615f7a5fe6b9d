/** The frame: which view stands at this address, where one can go, and the keys that hold everywhere. */
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Empty, State } from "./parts/Basics";
import { Help } from "./parts/Help";
import { useLive } from "./data/live";
import { isReport, route, useGet } from "./data/source";
import type { Run, RunState } from "./data/types";
import { useKeys } from "./keys";
import { go, links, usePlace, type Place } from "./router";
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
      return <Chat run={run} />;
    default:
      return <Empty>There is no such view. Press ? for what there is.</Empty>;
  }
}

function Header(props: {
  run: string | null;
  tabs: typeof tabs;
  name?: string;
  state: RunState | null;
  part: string;
  isLive: boolean;
  onHelp: () => void;
  onSkip: () => void;
}) {
  const { run, part } = props;
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
            <a key={text} href={link(run)} aria-current={parts.includes(part) ? "page" : undefined}>
              {text}
            </a>
          ))
        )}
        <a href={links.compare(run ?? undefined)} aria-current={part === "compare" ? "page" : undefined}>
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
  const run = useGet<Run>(id === null ? null : route(["runs", id]), false);
  useLive(id, {
    state: setState,
    connected: setLive,
    missed: run.reload,
    step: (_, metrics) => {
      const known = run.data?.metrics;
      if (known && Object.keys(metrics).some((name) => !known.includes(name))) run.reload(); // a curve more, to begin with
    },
  });
  useEffect(() => setState(null), [id]);
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
    scrollTo(0, 0);
  }, [address, run.data?.name]);

  const toTab = (link: (run: string) => string) => () => (id !== null ? go(link(id)) : undefined);
  useKeys([
    { key: "?", does: "this help", run: () => setHelp((is) => !is) },
    { key: "d", does: "dark or light", run: toggle },
    { key: "g r", does: "all runs", run: () => go(links.runs()) },
    { key: "g c", does: "compare", run: () => go(links.compare(id ?? undefined)) },
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
        isLive={isLive && !isReport}
        onHelp={() => setHelp(true)}
      />
      <main ref={main} tabIndex={-1} class={"view-" + (part || (id === null ? "runs" : "overview"))}>
        {id === null ? part === "compare" ? <Compare query={place.query} /> : <Runs /> : null}
        {id !== null && run.data && <Damage of={run.data} />}
        {id !== null && run.data && view(place, run.data)}
        {run.error && <Refused status={run.status} text={run.error} />}
        {id !== null && run.loading && (
          <p class="loading" role="status">
            Reading the run …
          </p>
        )}
      </main>
      {help && <Help onClose={() => setHelp(false)} />}
    </>
  );
}

function up({ parts }: Place): string {
  const [, run = "", part = ""] = parts;
  if (parts[0] !== "run" || part === "") return links.runs();
  if (part === "episode" || part === "group") return links.episodes(run);
  if (part === "step") return links.steps(run);
  if (parts.length > 3 || part === "branch") return links.branches(run);
  return links.run(run);
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

export function Refused({ status, text }: { status: number; text: string }) {
  return (
    <div class="error" role="alert">
      <p>{text}</p>
      {status === 401 && (
        <p>
          Open the link that <code>ludus watch</code> printed: the key in it lets this browser in.
        </p>
      )}
    </div>
  );
}
