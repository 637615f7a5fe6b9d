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
  useEffect(() => {
    // what this field asked for comes back when more has been typed; a link or "clear" asks for something else
    if (value !== asked.current) setText((asked.current = value));
  }, [value]);
  useEffect(() => {
    if (text === asked.current) return;
    const timer = setTimeout(() => onText((asked.current = text)), PAUSE_MS);
    return () => clearTimeout(timer);
  }, [text]);
  return <input {...rest} value={text} onInput={(event) => setText(event.currentTarget.value)} />;
}
