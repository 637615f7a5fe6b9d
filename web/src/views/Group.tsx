/** The members of a group side by side: the same task, and where they went different ways. */
import { useEffect, useState } from "preact/hooks";
import { MessageText } from "./Messages";
import { Empty, Failed, Outcome } from "../parts/Basics";
import { get, holds, isReport, route, useGet } from "../data/source";
import { conversation, type Line } from "../data/turns";
import type { Episode, EpisodesPage, Message, Run } from "../data/types";
import { num, plural, signed } from "../format";
import { useKeys } from "../keys";
import { links, setQuery, usePlace } from "../router";

const MOST_MEMBERS = 16;
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

function useMembers(run: string, group: string) {
  const list = useGet<EpisodesPage>(
    route(["runs", run, "episodes"], { group, sort: "num", limit: MOST_MEMBERS }),
    false,
  );
  const [members, setMembers] = useState<Episode[]>([]);
  const [error, setError] = useState<string | null>(null);
  const [round, setRound] = useState(0);
  const ids = (list.data?.episodes ?? [])
    .map((row) => row.id)
    .filter((id) => holds(route(["runs", run, "episodes", id])))
    .join("\n");
  useEffect(() => {
    if (!ids) return;
    const abort = new AbortController();
    setError(null);
    Promise.all(ids.split("\n").map((id) => get<Episode>(route(["runs", run, "episodes", id]), abort.signal))).then(
      setMembers,
      (problem: Error) => abort.signal.aborted || setError(problem.message),
    );
    return () => abort.abort();
  }, [ids, round]);
  const retry = () => {
    list.reload();
    setRound((number) => number + 1);
  };
  return { members, total: list.data?.total ?? null, error: list.error ?? error, retry };
}

export function Group({ run, group }: { run: Run; group: string }) {
  const { members, total, error, retry } = useMembers(run.id, group);
  const { query } = usePlace();
  const base =
    members.find((member) => member.id === query.base) ??
    [...members].sort((a, b) => (b.reward ?? -Infinity) - (a.reward ?? -Infinity))[0];
  const at = base ? members.indexOf(base) : 0;
  useKeys([
    {
      key: "[",
      does: "compare with the member before",
      run: () => members.length && setQuery({ base: members[(at + members.length - 1) % members.length]!.id }),
    },
    {
      key: "]",
      does: "compare with the next member",
      run: () => members.length && setQuery({ base: members[(at + 1) % members.length]!.id }),
    },
  ]);
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
      {error && <Failed text={`Without all members: ${error}`} onRetry={retry} />}
      {!error && total === null && (
        <p class="loading" role="status">
          Reading the members …
        </p>
      )}
      {!error && total === 0 && (
        <Empty>
          No episode of this group has ended. Members appear one by one as they end;{" "}
          <a href={links.episodes(run.id)}>the list of episodes</a> has those of all groups.
        </Empty>
      )}
      {total !== null && total > 0 && isReport && members.length < total && (
        <p class="notice">This report holds {members.length} of them turn by turn; `ludus watch` shows all.</p>
      )}
      {base && (
        <>
          <p class="faint">
            Words that <b>{base.id}</b> does not have at the same place are <mark>marked</mark>. Choose another one to
            compare with by its head.
          </p>
          <div class="siblings" tabIndex={0} role="region" aria-label="Members side by side">
            {members.map((member) => (
              <Member
                key={member.id}
                run={run.id}
                member={member}
                base={base}
                onBase={() => setQuery({ base: member.id })}
              />
            ))}
          </div>
        </>
      )}
    </>
  );
}

function Member({ run, member, base, onBase }: { run: string; member: Episode; base: Episode; onBase: () => void }) {
  const [own, their] = [lines(member), lines(base)];
  const isBase = member === base;
  const first = own.findIndex((line, at) => textOf(line.message) !== textOf(their[at]?.message));
  return (
    <article class={"member" + (isBase ? " base" : "")} aria-label={`Episode ${member.id}`}>
      <header>
        <button type="button" aria-pressed={isBase} onClick={onBase} title="Compare the others with this one">
          {isBase ? "◉" : "○"}
          <span class="unseen">Compare with {member.id}</span>
        </button>
        <a href={links.episode(run, member.id)}>{member.id}</a>
        <Outcome kind={member.outcome} />
        <b class="num">{num(member.reward)}</b>
        <span class="num faint" title="mean advantage">
          {signed(member.advantage_mean)}
        </span>
      </header>
      {first > 0 && !isBase && (
        <p class="faint">
          {plural(first, "message")} as in {base.id}
        </p>
      )}
      {own.map((line, at) =>
        !isBase && first >= 0 && at < first ? null : (
          <div key={line.key} class={"said " + (line.isReply ? "reply" : line.message.role)}>
            <small>
              {line.message.role} · turn {line.turn.number}
            </small>
            <MessageText message={line.message} beside={isBase ? undefined : (their[at]?.message ?? nothing)} />
          </div>
        ),
      )}
      {first < 0 && !isBase && <p class="faint">Says the same, word by word.</p>}
      {member.reason && <p class="reason">{member.reason}</p>}
    </article>
  );
}
