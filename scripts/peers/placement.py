"""Claims GPUs of Placement, looks into its tables for anything booked twice, and gives everything back."""

import http.client
import json
import os
import threading
import time
import uuid

import clients
import psycopg2

GPUS = 8
NODES = int(os.environ["NODES"])
HEADERS = {
    "X-Auth-Token": "admin",
    "OpenStack-API-Version": "placement 1.36",
    "Content-Type": "application/json",
    "Accept": "application/json",
}
BOOKED = """
    SELECT coalesce(sum(used), 0), coalesce(max(used), 0)
      FROM (SELECT sum(used) AS used FROM allocations GROUP BY resource_provider_id) AS providers
"""


class Connection:
    def __init__(self):
        self.http = http.client.HTTPConnection("127.0.0.1", int(os.environ["PORT"]), timeout=120)

    def ask(self, method, path, body=None):
        self.http.request(method, path, body and json.dumps(body), HEADERS)
        reply = self.http.getresponse()
        text = reply.read()
        return reply.status, json.loads(text) if text else None

    def expect(self, status, method, path, body=None):
        got, said = self.ask(method, path, body)
        if got != status:
            raise RuntimeError(f"{method} {path}: {got} {said}")
        return said


def furnish():
    connection = Connection()
    for number in range(NODES):
        provider = str(uuid.uuid4())
        new = {"name": f"node-{number}", "uuid": provider}
        connection.expect(200, "POST", "/resource_providers", new)
        has = {"PGPU": {"total": GPUS, "max_unit": GPUS}}
        has = {"resource_provider_generation": 0, "inventories": has}
        connection.expect(200, "PUT", f"/resource_providers/{provider}/inventories", has)


def claim(connection):
    """One GPU, whoever else wants the same; the name of what holds it."""
    while True:
        found = connection.expect(200, "GET", "/allocation_candidates?resources=PGPU:1&limit=1")
        if not found["allocation_requests"]:
            raise RuntimeError("Placement is full")
        consumer = str(uuid.uuid4())
        wish = {
            "allocations": found["allocation_requests"][0]["allocations"],
            "project_id": "bench",
            "user_id": "bench",
            "consumer_generation": None,
        }
        status, said = connection.ask("PUT", f"/allocations/{consumer}", wish)
        if status == 204:
            return consumer
        if status != 409:
            raise RuntimeError(f"a claim: {status} {said}")


def at_once(count, work):
    """Runs it on so many threads; the first that fails fails all."""
    failed = []

    def run():
        try:
            work(Connection())
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def measure(count, seconds):
    times, claims = [], []
    began = time.perf_counter()

    def work(connection):
        while time.perf_counter() < began + seconds:
            sent = time.perf_counter()
            claims.append(claim(connection))
            times.append(time.perf_counter() - sent)

    at_once(count, work)
    lasted = time.perf_counter() - began
    check(len(claims))

    def give_back(connection):
        while True:
            try:
                consumer = claims.pop()
            except IndexError:
                return
            connection.expect(204, "DELETE", f"/allocations/{consumer}")

    at_once(8, give_back)
    return times, lasted


def check(claims):
    database = psycopg2.connect(os.environ["DATABASE_URL"])
    with database, database.cursor() as sql:
        sql.execute(BOOKED)
        booked, most = sql.fetchone()
    database.close()
    if booked != claims or most > GPUS:
        raise RuntimeError(f"Placement has booked {booked} for {claims} claims, up to {most} on a node")


try:
    furnish()
    measure(4, 2)
    clients.say({"peer": f"OpenStack Placement 16, {NODES} nodes", "durable": True})
    while asked := clients.question():
        clients.answer(*measure(*asked))
except Exception as error:
    clients.say({"cannot": str(error)[:300]})
    raise
