/** Server-sent events, read from an answer of `fetch`: an EventSource cannot POST, and does not say why it got nothing. */
export interface ServerEvent {
  kind: string;
  id: string;
  data: unknown;
}

function within<T>(ms: number, promise: Promise<T>): Promise<T> {
  if (ms === Infinity) return promise;
  let timer = 0;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error("The server has fallen silent.")), ms);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

function parsed(block: string): ServerEvent | null {
  const event = { kind: "message", id: "" };
  const data: string[] = [];
  for (const line of block.split(/\r?\n/)) {
    const [, name, value = ""] = /^(\w+):? ?(.*)$/.exec(line) ?? [];
    if (name === "event") event.kind = value;
    else if (name === "id") event.id = value;
    else if (name === "data") data.push(value);
  }
  return data.length ? { ...event, data: JSON.parse(data.join("\n")) } : null;
}

/** Until the answer ends. Throws if the connection breaks, or if nothing comes for `silentMs`. */
export async function* events(response: Response, silentMs = Infinity): AsyncGenerator<ServerEvent> {
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (let rest = ""; ; ) {
      const { done, value } = await within(silentMs, reader.read());
      if (done) return;
      const blocks = (rest + value).split(/\r?\n\r?\n/);
      rest = blocks.pop()!;
      for (const block of blocks) {
        const event = parsed(block);
        if (event) yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => undefined); // it may be broken already
  }
}
