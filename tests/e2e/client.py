"""A client that runs in a pod beside the deployment and asks without pause until told to stop.

Standard library only: it is mounted into the engine's image from a ConfigMap. Every request is a
new connection to the Service by its DNS name; every second one streams. On SIGTERM it prints one
JSON object and ends. Bounded in time and count whatever happens.
"""

import http.client
import json
import signal
import sys
import threading
import time

HOST, MODEL = sys.argv[1], sys.argv[2]
PAUSE_SECONDS = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0  # between a thread's requests
QUESTION = sys.argv[4] if len(sys.argv) > 4 else "What is ATOM?"
MAX_SECONDS, MAX_REQUESTS, THREADS = 400, 20_000, 2

stop = threading.Event()
lock = threading.Lock()
answered = 0
failures: list[str] = []


def ask(stream: bool) -> None:
    connection = http.client.HTTPConnection(HOST, 8000, timeout=60)
    try:
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": QUESTION}],
            "max_tokens": 24,
            "temperature": 0,
            "stream": stream,
        }
        headers = {"Content-Type": "application/json", "Connection": "close"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        text = response.read().decode()
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {text[:300]}")
        if stream and not text.rstrip().endswith("data: [DONE]"):
            raise RuntimeError(f"the stream ended early: {text[-300:]}")
        if not stream and not json.loads(text)["choices"][0]["message"]["content"]:
            raise RuntimeError("an empty answer")
    finally:
        connection.close()


def work(end: float) -> None:
    global answered
    for number in range(MAX_REQUESTS // THREADS):
        if stop.is_set() or time.monotonic() > end:
            return
        try:
            ask(stream=number % 2 == 0)
        except Exception as error:
            with lock:
                failures.append(f"{time.time():.1f} {type(error).__name__}: {error}")
        else:
            with lock:
                answered += 1
        stop.wait(PAUSE_SECONDS)


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    end = time.monotonic() + MAX_SECONDS
    threads = [threading.Thread(target=work, args=(end,)) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    print("asking", flush=True)
    for thread in threads:
        thread.join()
    print(json.dumps({"answered": answered, "failures": failures[:20]}), flush=True)


main()
