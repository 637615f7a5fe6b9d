import { useEffect, useRef } from "preact/hooks";
import { current, keyOf } from "../keys";

/** The keys that hold where the reader is. */
export function Help({ onClose }: { onClose: () => void }) {
  const box = useRef<HTMLDialogElement>(null);
  const keys = useRef(current()).current;
  useEffect(() => box.current!.showModal(), []);
  return (
    <dialog
      ref={box}
      class="help"
      aria-labelledby="help"
      onClose={onClose}
      onKeyDown={(event) => keyOf(event) === "?" && box.current!.close()}
      onClick={(event) => event.target === box.current && box.current!.close()}
    >
      <h2 id="help">Keys</h2>
      <dl>
        {keys.map(({ key, does }) => (
          <div key={key + does}>
            <dt>
              {key.split(" ").map((each) => (
                <kbd key={each}>{each}</kbd>
              ))}
            </dt>
            <dd>{does}</dd>
          </div>
        ))}
        <div>
          <dt>
            <kbd>↑</kbd>
            <kbd>↓</kbd>
            <kbd>←</kbd>
            <kbd>→</kbd>
          </dt>
          <dd>through rows, turns and tokens; Page and Home, End too</dd>
        </div>
        <div>
          <dt>
            <kbd>Esc</kbd>
          </dt>
          <dd>out of a field; closes this</dd>
        </div>
      </dl>
      <form method="dialog">
        <button>Close</button>
      </form>
    </dialog>
  );
}
