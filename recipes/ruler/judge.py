"""A judge of short answers behind an OpenAI-compatible endpoint. It scores by rule, so that the recipe runs offline.

python recipes/ruler/judge.py [PORT]

What it does is what a large model would be asked to do with the same rubric. Nothing here knows Ludus: it reads the
prompt that it is sent, and answers in the form that the prompt asks for.
"""

import contextlib
import json
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

RUBRIC = """\
- A good answer is one sentence of at most twelve words, and ends with a full stop.
- It names the animal it was asked about.
- Longer answers are worse the longer they are. An answer that breaks off is worse than one that ends."""

MOST_WORDS = 12
NO_SENTENCE_WORDS = 40

CONTEXT = re.compile(r"<context>\n(.*?)\n</context>", re.DOTALL)
TRAJECTORY = re.compile(r'<trajectory id="([^"]*)">\n(.*?)\n</trajectory>', re.DOTALL)


def qualities(question, answer):
    """Whether the animal is named, whether the answer ends, and how short it is, each from 0 to 1."""
    words = answer.split()
    animal = question.partition("?")[0].split()[-1].lower()
    names = animal in answer.lower()
    ends = answer.rstrip().endswith(".") and len(words) >= 3
    excess = max(0, len(words) - MOST_WORDS) / (NO_SENTENCE_WORDS - MOST_WORDS)
    return float(names), float(ends), max(0.0, 1.0 - excess) if words else 0.0


def score(question, answer):
    names, ends, short = qualities(question, answer)
    return round(0.3 * names + 0.3 * ends + 0.4 * short, 3)


def is_good(question, answer):
    """One short sentence about the animal: what the held-out score counts."""
    return all(quality == 1.0 for quality in qualities(question, answer)) and answer.rstrip().count(".") == 1


def verdict(prompt):
    """The scores of the trajectories in the prompt."""
    found = CONTEXT.search(prompt)
    shared = json.loads(found.group(1)) if found else []
    scores = []
    for name, text in TRAJECTORY.findall(prompt):
        messages = [*shared, *json.loads(text)]
        question = next(message["content"] for message in messages if message["role"] == "user")
        value = score(question, messages[-1]["content"])
        scores.append({"trajectory_id": name, "explanation": "named, ended, short", "score": value})
    return {"scores": scores}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = json.dumps(verdict(request["messages"][1]["content"]))
        message = {"role": "assistant", "content": text}
        usage = {"prompt_tokens": len(request["messages"][1]["content"]) // 4, "completion_tokens": len(text) // 4}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        answer = {"id": "judge-1", "object": "chat.completion", "model": "judge", "choices": [choice], "usage": usage}
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def serve(port=0):
    """The judge on a thread of this process; its base URL."""
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()


if __name__ == "__main__":
    with serve(int(sys.argv[1]) if len(sys.argv) > 1 else 8123) as url:
        print(url)
        threading.Event().wait()
