"""The conversation of a peer whose clients are written in Python: a question a line, an answer a line."""

import json
import sys


def say(answer):
    print(json.dumps(answer), flush=True)


def quantile(times, share):
    """In milliseconds; nothing when there are none."""
    ordered = sorted(times)
    return 1000 * ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else None


def answer(times, seconds):
    say({"rate": len(times) / seconds, "p50_ms": quantile(times, 0.5), "p99_ms": quantile(times, 0.99)})


def question():
    """How many clients, and for how many seconds; nothing when nobody asks any more."""
    line = sys.stdin.readline()
    if not line:
        return None
    clients, seconds = line.split()
    return int(clients), float(seconds)
