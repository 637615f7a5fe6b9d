/** The tokens of a turn with the numbers that the loss used, and the prompt as the model saw it. */
import { useEffect, useMemo, useState } from "preact/hooks";
import { Choice, Empty, Failed } from "../parts/Basics";
import { preview, probability, TokenText } from "../parts/TokenText";
import { get, route } from "../data/source";
import { colourings, scale, useTokens, type Colouring, type Loaded } from "../data/tokens";
import type { Alternatives, Run, Token, Turn } from "../data/types";
import { count, exact, reasonText, visible } from "../format";
import { useKeys } from "../keys";
import { links, setQuery, type Query } from "../router";

interface Props {
  run: Run;
  episode: string;
  turn: Turn;
  /** Of the episode. null: it was not trained on. */
  step: number | null;
  query: Query;
}

const isColouring = (text: string | undefined): text is Colouring => colourings.some(([name]) => name === text);

/** In the place of tokens that nobody here knows. */
const Unknown = () => (
  <Empty>
    The tokens of this turn are not known: a model that is served elsewhere answered, with text alone. Its words are
    under Messages.
  </Empty>
);

export function Tokens({ run, episode, turn, step, query }: Props) {
  const loaded = useTokens(run.id, episode, turn.id);
  const selected = query.i ? Number(query.i) : -1;
  const token = loaded.tokens[selected];
  const [alternatives, setAlternatives] = useState<Alternatives | null>(null);
  useEffect(() => setAlternatives(null), [selected]);
  const ask = () => {
    if (!token || token.kind === "prompt") return;
    get<Alternatives>(route(["runs", run.id, "episodes", episode, "turns", turn.id, "alternatives", token.i])).then(
      setAlternatives,
      (error: Error) => setAlternatives({ unavailable: `They could not be read: ${error.message} Enter asks again.` }),
    );
  };
  if (loaded.isWhole && !loaded.total) return <Unknown />;
  return (
    <ColouredTokens
      loaded={loaded}
      by={query.by}
      onBy={(by) => setQuery({ by })}
      selected={selected}
      onSelect={(i) => setQuery({ i })}
      onEnter={ask}
    >
      {token && <Details token={token} loaded={loaded} alternatives={alternatives} onAsk={ask} />}
      <Sum loaded={loaded} run={run} step={step} />
    </ColouredTokens>
  );
}

const unread = (loaded: Loaded) =>
  `${count(loaded.tokens.length)} of ${loaded.total ? count(loaded.total) : "its"} tokens are here, the rest is not: ${loaded.error}`;

/** Tokens with the choice of what colours them, and a panel beside them. */
export function ColouredTokens(props: {
  loaded: Loaded;
  by: string | undefined;
  onBy: (by: Colouring) => void;
  selected: number;
  onSelect: (at: number) => void;
  onEnter?: () => void;
  children: preact.ComponentChildren;
}) {
  const { loaded, selected } = props;
  const kind = isColouring(props.by) ? props.by : "logprob";
  const colours = useMemo(() => scale(kind, loaded.tokens), [kind, loaded]);
  useKeys(
    colourings.map(([name], at) => ({
      key: String(at + 1),
      does: `colour tokens by ${name}`,
      run: () => props.onBy(name),
    })),
  );
  return (
    <div class="tokens">
      <div class="token-bar">
        <Choice label="Colour by" value={kind} of={colourings} onChange={props.onBy} />
        <span class={"scale " + (colours.signed ? "signed" : "")}>
          <small>{colours.low}</small>
          <i aria-hidden="true" />
          <small>{colours.high}</small>
        </span>
        <span class="marks faint">
          <i class="tok clipped">clipped</i> <i class="tok masked">masked</i>
        </span>
        {!loaded.isWhole && !loaded.error && (
          <small role="status">
            {count(loaded.tokens.length)} of {count(loaded.total)} read
          </small>
        )}
      </div>
      {loaded.error && <Failed text={unread(loaded)} onRetry={() => loaded.retry?.()} />}
      <div class="token-body">
        <TokenText
          label="Tokens"
          loaded={loaded}
          scale={colours}
          selected={selected}
          onSelect={props.onSelect}
          onEnter={props.onEnter}
        />
        <aside class="details" aria-label="The token" aria-live="polite">
          {loaded.tokens[selected] ? null : (
            <p class="faint">
              Point at a token, or walk with the arrow keys; n goes to the next one that is clipped or masked.
            </p>
          )}
          {props.children}
        </aside>
      </div>
    </div>
  );
}

export function Details({
  token,
  loaded,
  alternatives,
  onAsk,
  brief = false,
}: {
  token: Token;
  loaded: Loaded;
  alternatives: Alternatives | null;
  onAsk?: () => void;
  /** Only what is known. */
  brief?: boolean;
}) {
  const gap =
    token.logprob !== null &&
    token.logprob !== undefined &&
    token.trained_logprob !== null &&
    token.trained_logprob !== undefined
      ? token.trained_logprob - token.logprob
      : null;
  const rows: [string, string, string?][] =
    token.kind === "prompt"
      ? [["part", "prompt"]]
      : [
          ["sampled logprob", exact(token.logprob), probability(token.logprob)],
          ["trained logprob", exact(token.trained_logprob), probability(token.trained_logprob)],
          ["difference", exact(gap)],
          ["ratio", exact(token.ratio), token.clipped ? "clipped" : token.clipped === false ? "not clipped" : ""],
          ["advantage", exact(token.advantage)],
          ["weight", exact(token.weight, 8)],
          ["loss", exact(token.loss, 8)],
          [
            "mask",
            token.mask
              ? reasonText(token.mask)
              : token.loss === null || token.loss === undefined
                ? "–"
                : "none, trained",
          ],
          ["version", count(token.version)],
          ["entropy", exact(token.entropy, 4)],
          ["kept set", token.kept === null || token.kept === undefined ? "–" : `${count(token.kept)} ids`],
        ];
  const more: [string, number | null | undefined][] = [
    ["before the step", token.old_logprob],
    ["reference", token.reference_logprob],
    ["KL to it", token.kl_reference],
    ["factor", token.factor],
  ];
  for (const [name, value] of more) if (value !== null && value !== undefined) rows.push([name, exact(value)]);
  return (
    <section class="token-details">
      <h3>
        <code>{preview(token)}</code>
      </h3>
      <p class="faint num">
        id {token.id} · {count(token.i + 1)} of {count(loaded.total)}
        {token.kind === "sampled" && ` · ${count(token.i - loaded.promptTotal + 1)} of the answer`}
      </p>
      <dl>
        {(brief ? rows.filter(([, value]) => value !== "–") : rows).map(([name, value, note]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd class="num">
              {value}
              {note && <small>{note}</small>}
            </dd>
          </div>
        ))}
      </dl>
      {token.kind === "sampled" && (onAsk || alternatives) && (
        <>
          {!alternatives && (
            <button type="button" onClick={onAsk}>
              Alternatives (Enter)
            </button>
          )}
          {alternatives?.unavailable && <p class="faint">{alternatives.unavailable}</p>}
          {alternatives?.alternatives && (
            <ol class="alternatives" aria-label="Alternatives">
              {alternatives.alternatives.map((each) => (
                <li key={each.id} class={each.id === token.id ? "now" : ""}>
                  <i style={{ width: `${100 * Math.exp(each.logprob ?? -Infinity)}%` }} aria-hidden="true" />
                  <code>{visible(JSON.stringify(each.text ?? `#${each.id}`))}</code>
                  <span class="num">{exact(Math.exp(each.logprob ?? -Infinity), 4)}</span>
                </li>
              ))}
            </ol>
          )}
        </>
      )}
    </section>
  );
}

function Sum({ loaded, run, step }: { loaded: Loaded; run: Run; step: number | null }) {
  const sums = useMemo(() => {
    let [loss, trained, masked, clipped, sampled] = [0, 0, 0, 0, 0];
    for (const token of loaded.tokens) {
      if (token.kind === "prompt") continue;
      sampled++;
      if (token.mask) masked++;
      if (token.clipped) clipped++;
      if (token.loss === null || token.loss === undefined) continue;
      trained++;
      loss += token.loss;
    }
    return { loss, trained, masked, clipped, sampled };
  }, [loaded]);
  if (!loaded.isWhole || !sums.sampled) return null;
  return (
    <section class="sum">
      <h3>This turn</h3>
      <dl>
        <div>
          <dt>sum of losses</dt>
          <dd class="num">{sums.trained ? exact(sums.loss, 8) : "–"}</dd>
        </div>
        <div>
          <dt>sampled</dt>
          <dd class="num">{count(sums.sampled)}</dd>
        </div>
        <div>
          <dt>with a loss</dt>
          <dd class="num">{count(sums.trained)}</dd>
        </div>
        <div>
          <dt>masked</dt>
          <dd class="num">{count(sums.masked)}</dd>
        </div>
        <div>
          <dt>clipped</dt>
          <dd class="num">{count(sums.clipped)}</dd>
        </div>
      </dl>
      {step !== null && <a href={links.step(run.id, step)}>the step's loss</a>}
    </section>
  );
}

export function Prompt({ run, episode, turn, query }: Props) {
  const loaded = useTokens(run.id, episode, turn.id, true);
  const selected = query.i ? Number(query.i) : -1;
  const token = loaded.tokens[selected];
  if (loaded.isWhole && !loaded.total) return <Unknown />;
  return (
    <div class="tokens">
      <div class="token-body">
        <TokenText label="Prompt" loaded={loaded} scale={null} selected={selected} onSelect={(i) => setQuery({ i })} />
        <aside class="details" aria-label="The token" aria-live="polite">
          <p class="faint">
            {count(loaded.total)} tokens, as the model saw them
            {!loaded.isWhole && `; ${count(loaded.tokens.length)} read`}.
          </p>
          {loaded.error && <Failed text={unread(loaded)} onRetry={() => loaded.retry?.()} />}
          {token && <Details token={token} loaded={loaded} alternatives={null} />}
        </aside>
      </div>
    </div>
  );
}
