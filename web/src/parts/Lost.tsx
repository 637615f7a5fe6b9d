/** Says that the server does not answer, why, and when it is asked again. */
import { useEffect, useState } from "preact/hooks";
import { retryNow, useConnection } from "../data/connection";
import { isReport } from "../data/source";

const SHORT_MS = 1500; // a pause in which nobody could read why: a stream that is opened again at once

export function Lost() {
  const { problem, nextAt } = useConnection();
  const [at, setAt] = useState(0);
  const [since, setSince] = useState<number | null>(null);
  useEffect(() => {
    if (problem === null) return setSince(null);
    setSince((old) => old ?? Date.now());
    setAt(Date.now());
    const timer = setInterval(() => setAt(Date.now()), 500);
    return () => clearInterval(timer);
  }, [problem, nextAt]);
  if (problem === null || isReport || since === null || at - since < SHORT_MS) return null;
  const left = Math.ceil((nextAt - at) / 1000);
  return (
    <div class="lost">
      <p role="alert">{problem}</p>
      <span class="num faint">{left > 0 ? `asked again in ${left}\u202fs` : "asking …"}</span>
      <button type="button" onClick={retryNow}>
        Try now
      </button>
    </div>
  );
}
