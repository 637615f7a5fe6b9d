/** The members of a group side by side: the same task, and where they went different ways. */
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { heightOf, MessageText } from "./Messages";
import { Empty, Failed, Outcome } from "../parts/Basics";
import { Flow } from "../parts/Flow";
import { useSeen } from "../parts/seen";
import { get, holds, isReport, route, useGet } from "../data/source";
import { conversation, type Line } from "../data/turns";
import type { Episode, EpisodeRow, EpisodesPage, Message, Run } from "../data/types";
import { num, plural, signed, visible } from "../format";
import { useKeys } from "../keys";
import { links, setQuery, usePlace } from "../router";

const MOST_MEMBERS = 1000; // as many as one answer has
const FEW = 16; // so many are all in the page
const MOST_KEPT = 64; // members that were read: one may have megabytes
const GAP = 12;
const nothing: Message = { role: "", content: null };

const textOf = (message: Message | undefined) =>
  message
    ? [
        message.reasoning,
        message.content,
        ...(message.tool_calls ?? []).map((call) => `${call.name}(${call.arguments})`),
      ]
        .filter(Boolean)
        .join("\n")
    : "";

function lines(episode: Episode): Line[] {
  return conversation([...episode.turns].sort((a, b) => a.number - b.number));
}

/** The episodes with these ids, as far as they were read. */
function useMembers(run: string, ids: string[]) {
  const kept = useRef(new Map<string, Episode>());
  const [, redraw] = useState(0);
  const [error, setError] = useState<string | null>(null);
  const [round, setRound] = useState(0);
  useEffect(() => {
    const abort = new AbortController();
    setError(null);
    const missing = ids.filter((id) => !kept.current.has(id));
    for (const id of missing)
      get<Episode>(route(["runs", run, "episodes", id]), abort.signal).then(
        (episode) => {
          kept.current.set(id, episode);
          for (const old of kept.current.keys())
            if (kept.current.size > MOST_KEPT && !ids.includes(old)) kept.current.delete(old);
          redraw((number) => number + 1);
        },
        (problem: Error) => abort.signal.aborted || setError(problem.message),
      );
    return () => abort.abort();
  }, [run, ids.join("\n"), round]);
  return { of: kept.current, error, retry: () => setRound((number) => number + 1) };
}

export function Group({ run, group }: { run: Run; group: string }) {
  const address = route(["runs", run.id, "episodes"], { group, sort: "num", limit: MOST_MEMBERS });
  const list = useGet<EpisodesPage>(address, false);
  const rows = useMemo(
    () => (list.data?.episodes ?? []).filter((row) => holds(route(["runs", run.id, "episodes", row.id]))),
    [list.data],
  );
  const total = list.data?.total ?? null;
  return (
    <>
      <div class="title">
        <h1>Group {group}</h1>
        <span class="faint">
          {total !== null && plural(total, "member")}
          {(total ?? 0) > MOST_MEMBERS && `, the first ${MOST_MEMBERS} here`}
        </span>
        <a href={links.episodes(run.id, { group })}>as a list</a>
      </div>
      {list.error && <Failed text={`Without the members: ${list.error}`} onRetry={list.reload} />}
      {!list.error && total === null && (
        <p class="loading" role="status">
          Reading the members …
        </p>
      )}
      {!list.error && total === 0 && (
        <Empty>
          No episode of this group has ended. Members appear one by one as they end;{" "}
          <a href={links.episodes(run.id)}>the list of episodes</a> has those of all groups.
        </Empty>
      )}
      {total !== null && isReport && rows.length < total && (
        <p class="notice">This report holds {rows.length} of them turn by turn; `ludus watch` shows all.</p>
      )}
      {rows.length > 0 && <Members run={run.id} rows={rows} />}
    </>
  );
}

/** Columns of one width, so that it is known which of them are seen. */
function useColumns(count: number) {
  const box = useRef<HTMLDivElement>(null);
  const inner = useRef<HTMLDivElement>(null);
  const seen = useSeen(inner);
  const [room, setRoom] = useState(1200);
  useLayoutEffect(() => {
    const watch = new ResizeObserver(() => setRoom(box.current!.clientWidth));
    watch.observe(box.current!);
    return () => watch.disconnect();
  }, []);
  const width = innerWidth <= 800 ? 0.86 * innerWidth : Math.max(300, Math.min(460, (room + GAP) / count - GAP));
  const whole = width + GAP;
  const first = count <= FEW ? 0 : Math.min(count - 1, Math.max(0, Math.floor(seen.left / whole) - 1));
  const last = count <= FEW ? count - 1 : Math.min(count - 1, Math.ceil(seen.right / whole));
  const show = (at: number) => {
    const element = box.current!;
    const x = at * whole;
    if (x < element.scrollLeft || x + width > element.scrollLeft + element.clientWidth) element.scrollLeft = x;
  };
  return { box, inner, width, whole, first, last, show };
}

function Members({ run, rows }: { run: string; rows: EpisodeRow[] }) {
  const { query } = usePlace();
  const best = useMemo(() => [...rows].sort((a, b) => (b.reward ?? -Infinity) - (a.reward ?? -Infinity))[0]!, [rows]);
  const base = rows.find((row) => row.id === query.base) ?? best;
  const at = rows.indexOf(base);
  const { box, inner, width, whole, first, last, show } = useColumns(rows.length);
  const seen = rows.slice(first, last + 1);
  const members = useMembers(run, [...new Set([base, ...seen].map((row) => row.id))]);
  const compare = (to: number) => {
    const row = rows[(to + rows.length) % rows.length]!;
    setQuery({ base: row.id });
    show(rows.indexOf(row));
  };
  useKeys([
    { key: "[", does: "compare with the member before", run: () => compare(at - 1) },
    { key: "]", does: "compare with the next member", run: () => compare(at + 1) },
  ]);
  return (
    <>
      {members.error && <Failed text={`Without all members: ${members.error}`} onRetry={members.retry} />}
      <p class="faint">
        Words that <b>{base.id}</b> does not have at the same place are <mark>marked</mark>. Choose another one to
        compare with by its head.
      </p>
      <div class="siblings" tabIndex={0} role="region" aria-label="Members side by side" ref={box}>
        <div class="columns" ref={inner} style={{ width: `${rows.length * whole - GAP}px` }}>
          <div style={{ width: `${first * whole}px` }} aria-hidden="true" />
          {seen.map((row) => (
            <Member
              key={row.id}
              run={run}
              row={row}
              member={members.of.get(row.id)}
              base={members.of.get(base.id)}
              width={width}
              onBase={() => setQuery({ base: row.id })}
            />
          ))}
        </div>
      </div>
    </>
  );
}

interface MemberProps {
  run: string;
  row: EpisodeRow;
  /** undefined, as `base`: it is being read. */
  member: Episode | undefined;
  base: Episode | undefined;
  width: number;
  onBase: () => void;
}

function Member({ run, row, member, base, width, onBase }: MemberProps) {
  const isBase = member !== undefined && member === base;
  const own = useMemo(() => (member ? lines(member) : []), [member]);
  const their = useMemo(() => (base ? lines(base) : []), [base]);
  const first = useMemo(
    () => own.findIndex((line, at) => textOf(line.message) !== textOf(their[at]?.message)),
    [own, their],
  );
  const from = isBase ? 0 : Math.max(0, first);
  return (
    <article
      class={"member" + (isBase ? " base" : "")}
      aria-label={`Episode ${row.id}`}
      style={{ width: `${width}px`, marginRight: `${GAP}px` }}
    >
      <header>
        <button type="button" aria-pressed={isBase} onClick={onBase} title="Compare the others with this one">
          {isBase ? "◉" : "○"}
          <span class="unseen">Compare with {row.id}</span>
        </button>
        <a href={links.episode(run, row.id)}>{row.id}</a>
        <Outcome kind={row.outcome} />
        <b class="num">{num(row.reward)}</b>
        <span class="num faint" title="mean advantage">
          {signed(row.advantage_mean)}
        </span>
      </header>
      {(!member || !base) && <p class="faint">Reading …</p>}
      {member && base && first > 0 && !isBase && (
        <p class="faint">
          {plural(first, "message")} as in {base.id}
        </p>
      )}
      {member && base && (isBase || first >= 0) && (
        <Flow
          count={own.length - from}
          of={[own, their, isBase]}
          guess={(at, wide) => heightOf(own[from + at]!.message, wide) + 20}
          classOf={(at) => "said " + (own[from + at]!.isReply ? "reply" : own[from + at]!.message.role)}
          row={(at) => {
            const line = own[from + at]!;
            return (
              <>
                <small>
                  {line.message.role} · turn {line.turn.number}
                </small>
                <MessageText
                  message={line.message}
                  beside={isBase ? undefined : (their[from + at]?.message ?? nothing)}
                />
              </>
            );
          }}
        />
      )}
      {member && base && first < 0 && !isBase && <p class="faint">Says the same, word by word.</p>}
      {member?.reason && <p class="reason">{visible(member.reason)}</p>}
    </article>
  );
}
