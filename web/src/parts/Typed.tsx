/** A field in which one types: what it holds is asked for a moment later, and nothing that comes meanwhile changes it. */
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

const PAUSE_MS = 150; // between letters: fewer and every word would be asked for letter by letter

export function Typed(
  props: Omit<JSX.InputHTMLAttributes<HTMLInputElement>, "value" | "onChange" | "onInput"> & {
    value: string;
    onText: (text: string) => void;
  },
) {
  const { value, onText, ...rest } = props;
  const [text, setText] = useState(value);
  const asked = useRef(text);
  const timer = useRef<ReturnType<typeof setTimeout>>();
  const ask = (text: string) => {
    clearTimeout(timer.current);
    if (text !== asked.current) onText((asked.current = text));
  };
  const type = (text: string) => {
    setText(text);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => ask(text), PAUSE_MS);
  };
  useEffect(() => () => clearTimeout(timer.current), []);
  useEffect(() => {
    // what this field asked for comes back when more has been typed; a link or "clear" asks for something else
    if (value === asked.current) return;
    clearTimeout(timer.current);
    setText((asked.current = value));
  }, [value]);
  // who leaves the field has typed all of it: nothing is asked for after what he does next, such as to clear it
  // Preact takes names of events that elements have no property for as they are
  const composed = { oncompositionend: ({ target }: Event) => type((target as HTMLInputElement).value) };
  return (
    <input
      {...rest}
      {...composed}
      value={text}
      onInput={(event) => {
        // an input method writes drafts of a word until one of them is chosen
        if (event.isComposing) setText(event.currentTarget.value);
        else type(event.currentTarget.value);
      }}
      onBlur={(event) => ask(event.currentTarget.value)}
    />
  );
}
